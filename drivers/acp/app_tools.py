"""How an ACP agent comes to the application-side tools: its MCP servers, and calls known by their titles; pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from acp.schema import AgentCapabilities, EnvVariable, HttpHeader, HttpMcpServer, McpServerStdio

from drivers.acp.app_tool_calls import AppTool
from drivers.acp.tool_calls import Call
from drivers.contract.tool_server import ToolServer

SERVER = "portico"
BRIDGE = "drivers.acp.mcp_bridge"
OWN_KINDS = frozenset({"read", "edit", "delete", "move", "search", "execute", "fetch", "switch_mode"})
"""What an agent says of its own tools; never of a tool that it knows nothing of."""


def mcp_servers(server: ToolServer | None, can: AgentCapabilities | None) -> list[Any]:
    """The servers of a session: by HTTP if the agent can, else by a small program that it starts itself.

    The token is never an argument, which everybody on the machine could read.
    """
    if server is None:
        return []
    if can is not None and can.mcp_capabilities is not None and can.mcp_capabilities.http:
        header = HttpHeader(name="Authorization", value=f"Bearer {server.token}")
        return [HttpMcpServer(type="http", name=SERVER, url=server.url, headers=[header])]
    env = [EnvVariable(name="PORTICO_MCP_URL", value=server.url), EnvVariable(name="PORTICO_MCP_TOKEN", value=server.token)]
    return [McpServerStdio(name=SERVER, command=sys.executable, args=["-m", BRIDGE], env=env)]


def past_proxies(env: Mapping[str, str], server: ToolServer | None) -> dict[str, str]:
    """An environment by which a proxy, if there is one, is not asked for what is on this machine."""
    if server is None:
        return dict(env)
    direct = ",".join(filter(None, (env.get("NO_PROXY") or env.get("no_proxy"), "127.0.0.1")))
    return {**env, "NO_PROXY": direct, "no_proxy": direct}


def by_title(names: Iterable[str]) -> AppTool:
    """Knows the calls of an agent that names server and tool in a call's title, as all do in one way or another.

    The whole title has to be that: a part of it, such as a command's text, could be the model's own words.
    """
    known = {_plain(name): name for name in names}

    def app_tool(call: Call) -> str | None:
        given = call.raw_input
        if isinstance(given, dict) and given.get("server") == SERVER and given.get("tool") in known.values():
            return str(given["tool"])
        if call.kind in OWN_KINDS:
            return None
        found = re.fullmatch(rf"(?:tool_)?(?:mcp_)?{SERVER}_(.+)|(.+)_{SERVER}_mcp_server", _plain(call.title))
        return known.get(found[1] or found[2]) if found else None

    return app_tool


def _plain(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")
