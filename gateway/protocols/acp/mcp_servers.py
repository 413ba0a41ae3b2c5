"""The MCP servers that a client brings along for a session, as what the agent's CLI is told of them; pure."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from acp.schema import AcpMcpServer, HttpMcpServer, McpServerStdio, SseMcpServer

from drivers.contract.mcp_servers import McpServer
from gateway.agents.configured import ConfiguredAgent
from gateway.errors import BadRequest

log = logging.getLogger(__name__)

Given = HttpMcpServer | SseMcpServer | AcpMcpServer | McpServerStdio


def brought(servers: Iterable[Given], agent: ConfiguredAgent) -> tuple[McpServer, ...]:
    """The servers for the agent. Raises BadRequest for a kind that its CLI cannot use.

    Editors send the servers of their own settings to every agent: one that uses none at all goes on without them.
    """
    found = [_server(server, f"mcpServers[{n}]") for n, server in enumerate(servers)]
    if found and not agent.info.mcp:
        log.info("agent %s uses no MCP servers; the client's are left out", agent.name)
        return ()
    for n, server in enumerate(found):
        if server.transport not in agent.info.mcp:
            raise BadRequest(
                f"mcpServers[{n}]: agent {agent.name!r} uses no servers by {server.transport}; initialize says which"
            )
    return tuple(found)


def _server(given: Given, where: str) -> McpServer:
    match given:
        case McpServerStdio():
            env = {variable.name: variable.value for variable in given.env}
            return McpServer(given.name, "stdio", command=given.command, args=tuple(given.args), env=env)
        case HttpMcpServer() | SseMcpServer():
            headers = {header.name: header.value for header in given.headers}
            return McpServer(given.name, given.type, url=given.url, headers=headers)
        case AcpMcpServer():
            raise BadRequest(f"{where}: servers over this connection are not declared here; give a program or an address")
