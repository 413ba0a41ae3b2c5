"""How many connections the limit of open files allows, so that agents can always start."""

from __future__ import annotations

import resource

BASE_DESCRIPTORS = 64
"""File descriptors for the store, the log, the sockets and the files that are open for a moment (13 of an idle daemon)."""
AGENT_DESCRIPTORS = 8
"""File descriptors for an agent: three pipes, and while it starts twice as many; its transcript."""
MAX_DESCRIPTORS = 65536
"""What is assumed where the number of open files is not limited."""


def agent_connection_limit(live_agents: int) -> int:
    """The most connections of agents to the gateway's MCP server."""
    return min(16 + 4 * live_agents, _descriptors() // 8)


def client_connection_limit(live_agents: int) -> int:
    """The most connections of clients, so that `live_agents` agents can always start: a part of the limit of open files."""
    descriptors = _descriptors()
    reserved = BASE_DESCRIPTORS + AGENT_DESCRIPTORS * live_agents + agent_connection_limit(live_agents)
    return max(descriptors - reserved, descriptors // 4)


def accept_at_once() -> int:
    """The most connections that are accepted before those over the limit are closed: asyncio accepts a whole backlog at once."""
    return min(_descriptors() // 8, 2048)


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MAX_DESCRIPTORS)
