"""The command line, one module a command: serve, run, acp, key, audit."""
