"""The MCP servers of an ACP session: the gateway's, which serves the application-side tools, and the client's. No I/O."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping

from acp.schema import AgentCapabilities, EnvVariable, HttpHeader, HttpMcpServer, McpServerStdio, SseMcpServer

from drivers.contract.mcp_servers import McpServer
from drivers.contract.tool_server import ToolServer

log = logging.getLogger(__name__)

SERVER = "portico"
"""The name of the gateway's own server; a client's server of that name is renamed."""
BRIDGE = "drivers.acp.mcp_bridge"

AcpMcpServer = HttpMcpServer | SseMcpServer | McpServerStdio


def session_servers(
    tool_server: ToolServer | None, client_servers: Iterable[McpServer], capabilities: AgentCapabilities | None
) -> list[AcpMcpServer]:
    """All MCP servers of a session, in the protocol's shape."""
    return [*_gateway_server(tool_server, capabilities), *_client_servers(client_servers, capabilities)]


def bypass_proxy(env: Mapping[str, str], server: ToolServer | None) -> dict[str, str]:
    """The environment with `NO_PROXY` extended, so that the agent connects to the gateway's server directly."""
    if server is None:
        return dict(env)
    direct = ",".join(filter(None, (env.get("NO_PROXY") or env.get("no_proxy"), "127.0.0.1")))
    return {**env, "NO_PROXY": direct, "no_proxy": direct}


def _gateway_server(server: ToolServer | None, capabilities: AgentCapabilities | None) -> list[AcpMcpServer]:
    """The gateway's server: by HTTP if the agent supports it, else by the stdio bridge, which the agent starts.

    The token is never in an argument: every user of the machine can read those.
    """
    if server is None:
        return []
    if capabilities is not None and capabilities.mcp_capabilities is not None and capabilities.mcp_capabilities.http:
        header = HttpHeader(name="Authorization", value=f"Bearer {server.token}")
        return [HttpMcpServer(type="http", name=SERVER, url=server.url, headers=[header])]
    env = [EnvVariable(name="PORTICO_MCP_URL", value=server.url), EnvVariable(name="PORTICO_MCP_TOKEN", value=server.token)]
    return [McpServerStdio(name=SERVER, command=sys.executable, args=["-m", BRIDGE], env=env)]


def _client_servers(servers: Iterable[McpServer], capabilities: AgentCapabilities | None) -> list[AcpMcpServer]:
    """The client's servers whose transport the agent supports: stdio always, HTTP and SSE as it declares."""
    declared = capabilities.mcp_capabilities if capabilities else None
    supported = {"stdio": True, "http": bool(declared and declared.http), "sse": bool(declared and declared.sse)}
    found: list[AcpMcpServer] = []
    for server in servers:
        if supported[server.transport]:
            found.append(_client_server(server))
        else:
            log.warning("the agent does not support MCP servers over %s; %r is omitted", server.transport, server.name)
    return found


def _client_server(server: McpServer) -> AcpMcpServer:
    name = f"{server.name}-2" if server.name.lower() == SERVER else server.name
    headers = [HttpHeader(name=name, value=value) for name, value in server.headers.items()]
    if server.transport == "http":
        return HttpMcpServer(type="http", name=name, url=server.url, headers=headers)
    if server.transport == "sse":
        return SseMcpServer(type="sse", name=name, url=server.url, headers=headers)
    env = [EnvVariable(name=name, value=value) for name, value in server.env.items()]
    return McpServerStdio(name=name, command=server.command, args=list(server.args), env=env)
