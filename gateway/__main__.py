"""`python -m gateway` is `portico`."""

from gateway.cli.main import main

main()
