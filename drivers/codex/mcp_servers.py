"""The client's MCP servers as settings of codex, and the CLI's requests for permission to call them. No state.

Measured with codex 0.169.0. The request is an elicitation of the CLI itself, which names server, tool and arguments, but no call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from drivers.codecs.tool_calls import Call
from drivers.codex.items import mcp_name
from drivers.contract.mcp_servers import McpServer, by_safe_name
from drivers.runtime.process_tree import MARKER

ELICITATION = "mcpServer/elicitation/request"
GRANULAR_POLICY = {
    "granular": {
        "sandbox_approval": False,
        "rules": False,
        "skill_approval": False,
        "request_permissions": False,
        "mcp_elicitations": True,
    }
}
"""The approval policy `never`, except for calls of MCP servers: with `never` the CLI refuses those that need permission."""


def settings(servers: Sequence[McpServer], users: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The servers in the form of the CLI's settings.

    Parameters:
        users: The names of servers in the user's own settings. Settings are merged by name, and one of these could let a tool
            of the same name run without permission.
    """
    return {name: _setting(server) for name, server in by_safe_name(servers, users).items()}


def _setting(server: McpServer) -> dict[str, Any]:
    mode = {"default_tools_approval_mode": "prompt"}
    if server.transport == "stdio":
        # The CLI starts it with little of its own environment. By the marker the process is found when its session ends.
        env = {"env": dict(server.env), "env_vars": [MARKER]}
        return {"command": server.command, "args": list(server.args), **env, **mode}
    return {"url": server.url, "http_headers": dict(server.headers), **mode}


def call_of_elicitation(params: Mapping[str, Any], calls: Iterable[Call]) -> Call | None:
    """The call that an elicitation is about; None if it is a request of the server itself."""
    meta = params.get("_meta")
    if not isinstance(meta, dict) or meta.get("codex_approval_kind") != "mcp_tool_call":
        return None
    name, arguments = mcp_name(params["serverName"], meta["tool_name"]), meta.get("tool_params") or {}
    return next((call for call in calls if call.name == name and call.input == arguments), None)
