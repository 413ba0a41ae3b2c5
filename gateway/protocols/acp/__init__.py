"""The Agent Client Protocol (ACP), version 1: serves each agent of the gateway as an agent of the protocol.

Importing the `acp` package takes 0.5 s and 24 MB (0.12.1), so only `routes.py`, `examples.py` and `transport` are imported at
startup. `transport/lazy_import.py` imports the rest when the first client connects.
"""
