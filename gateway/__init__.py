"""The gateway: a daemon that serves agents to clients over several protocols."""

__version__ = "0.1.0"
