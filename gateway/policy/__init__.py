"""Rules about tool calls, and their enforcement before the client is asked. Pure, without I/O and clock, but for `paths`."""
