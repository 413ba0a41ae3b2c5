"""`python -m gateway` is `portico`."""

from gateway.cli import main

main()
