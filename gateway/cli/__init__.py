"""The command line: a module per command, the options that they share, and their group."""
