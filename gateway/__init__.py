"""The daemon: clients in front, agents behind."""

__version__ = "0.1.0"
