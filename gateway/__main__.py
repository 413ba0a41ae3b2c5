"""`python -m gateway` runs the command `portico`."""

from gateway.cli.main import main

main()
