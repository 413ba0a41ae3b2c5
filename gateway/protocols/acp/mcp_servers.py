"""Converts the MCP servers of a client's session request to those of the driver contract. Does no I/O.

Protocol page: https://agentclientprotocol.com/protocol/session-setup#mcp-servers
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import chain

from drivers.contract.mcp_servers import McpServer
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.errors import BadRequest
from gateway.protocols.acp.session_requests import AnyMcpServer, ClientMcpServer, RemoteMcpServer, StdioMcpServer
from gateway.text_limits import MAX_MCP_SERVERS, MAX_NAME, MAX_TEXT, check_count, check_length

log = logging.getLogger(__name__)

MAX_VALUES = 1000
"""Limit of the variables and headers of a session's servers: each value is searched for in the session's errors."""


def mcp_servers_for(servers: Iterable[AnyMcpServer], agent: ConfiguredAgent) -> tuple[McpServer, ...]:
    """Return the servers for the agent. Raises BadRequest for a transport that its CLI does not support, and for more
    or longer servers, variables and headers than a session may have.

    Which servers the configuration allows is checked by the session registry.

    An agent that supports no MCP servers gets none, without an error: editors send the servers of their settings to every agent.
    """
    converted = [_server(server, f"mcpServers[{n}]") for n, server in enumerate(servers)]
    _check_lengths(converted)
    if converted and not agent.info.mcp.transports:
        log.info("agent %s supports no MCP servers; the client's are ignored", agent.name)
        return ()
    if (values := sum(len(server.env) + len(server.headers) for server in converted)) > MAX_VALUES:
        raise BadRequest(f"mcpServers: {values} variables and headers are too many; a session has {MAX_VALUES} at most")
    for n, server in enumerate(converted):
        if server.transport not in agent.info.mcp.transports:
            raise BadRequest(
                f"mcpServers[{n}]: agent {agent.name!r} does not support the transport {server.transport}; "
                "the answer to initialize declares those it supports"
            )
    return tuple(converted)


def _check_lengths(servers: Sequence[McpServer]) -> None:
    check_count("mcpServers", len(servers), MAX_MCP_SERVERS)
    for n, server in enumerate(servers):
        check_length(f"mcpServers[{n}].name", server.name, MAX_NAME)
        texts = (server.command, server.url, *server.args, *chain(*server.env.items()), *chain(*server.headers.items()))
        check_length(f"mcpServers[{n}]", "".join(texts), MAX_TEXT)


def _server(given: AnyMcpServer, path: str) -> McpServer:
    match given:
        case StdioMcpServer():
            env = {variable.name: variable.value for variable in given.env}
            return McpServer(given.name, "stdio", command=given.command, args=tuple(given.args), env=env)
        case RemoteMcpServer():
            headers = {header.name: header.value for header in given.headers}
            return McpServer(given.name, given.type, url=given.url, headers=headers)
        case ClientMcpServer():
            raise BadRequest(f"{path}: MCP servers over this connection are not supported; use stdio, http or sse")
