"""The MCP servers that a client brings along, as an ACP agent is told of them; pure."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from acp.schema import AgentCapabilities, EnvVariable, HttpHeader, HttpMcpServer, McpServerStdio, SseMcpServer

from drivers.contract.mcp_servers import McpServer

log = logging.getLogger(__name__)

GATEWAYS_OWN = "portico"

Deduplicator = HttpMcpServer | SseMcpServer | McpServerStdio


def brought(servers: Iterable[McpServer], can: AgentCapabilities | None) -> list[Deduplicator]:
    """Those that the agent can use: programs always, addresses as far as it says so."""
    declared = can.mcp_capabilities if can else None
    takes = {"stdio": True, "http": bool(declared and declared.http), "sse": bool(declared and declared.sse)}
    found: list[Deduplicator] = []
    for server in servers:
        if takes[server.transport]:
            found.append(_told(server))
        else:
            log.warning("the agent takes no MCP servers by %s; %r is left out", server.transport, server.name)
    return found


def _told(server: McpServer) -> Deduplicator:
    # The gateway's own, by which it offers the application's tools, is the only one of its name.
    name = f"{server.name}-2" if server.name.lower() == GATEWAYS_OWN else server.name
    headers = [HttpHeader(name=name, value=value) for name, value in server.headers.items()]
    if server.transport == "http":
        return HttpMcpServer(type="http", name=name, url=server.url, headers=headers)
    if server.transport == "sse":
        return SseMcpServer(type="sse", name=name, url=server.url, headers=headers)
    env = [EnvVariable(name=name, value=value) for name, value in server.env.items()]
    return McpServerStdio(name=name, command=server.command, args=list(server.args), env=env)
