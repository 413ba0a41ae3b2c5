"""Fault campaigns: the daemon is killed, stopped and starved while clients check what they receive. See docs/faults.md."""
