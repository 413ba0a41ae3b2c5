"""Transports of the Agent Client Protocol: stdio, WebSocket and streamable HTTP, and the bridge from stdio to a daemon."""
