"""The command line: a module per command (serve, run, acp, editor, key, audit), the options that they share, and their group."""
