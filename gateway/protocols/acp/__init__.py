"""The Agent Client Protocol (ACP), version 1: serves each agent of the gateway as an agent of the protocol.

Importing the `acp` package takes 0.6 s of processor time (acp 0.12.1, pydantic 2.14), so the modules that `connection.py` imports
do not import it.
`connection.py` answers `initialize`, and imports `requests.py` for the messages that follow.
"""
