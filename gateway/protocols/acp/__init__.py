"""The Agent Client Protocol (ACP), version 1: serves each agent of the gateway as an agent of the protocol.

Importing the `acp` package takes 0.3 s and 24 MB (0.12.1), so the modules that `connection.py` imports do not import it.
`connection.py` answers `initialize`, and imports `requests.py` for the messages that follow.
"""
