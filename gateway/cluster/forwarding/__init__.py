"""Requests between the nodes of a cluster: those that another node forwards, and those that belong to another node."""
