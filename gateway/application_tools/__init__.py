"""Application-side tools for agents that support them only over MCP: a server on loopback with a token for each agent process."""
