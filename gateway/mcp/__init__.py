"""Application-side tools for agents that take them by MCP: a server on loopback, one token for each agent's process."""
