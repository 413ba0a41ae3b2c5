"""The command line: one module per command (serve, run, acp, key, audit), the options that they share, and their group."""
