"""Rules about tool calls, and their enforcement before the client is asked. Pure: no I/O and no clock."""
