"""A session's event log: numbered events, read by any number of readers from any number; and the fold of events into messages.

It writes the store. It does not know who produces the events or which protocol sends them to a client.
"""
