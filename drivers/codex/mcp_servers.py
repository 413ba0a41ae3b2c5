"""MCP servers that a client brings along, as codex is told of them, and the CLI's questions about their calls; pure.

Measured with codex 0.169.0. The question is an elicitation of the CLI's own, which names server, tool and arguments, but no call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from drivers.codex.items import Call, mcp_name
from drivers.contract.mcp_servers import McpServer, by_safe_name
from drivers.runtime.process_tree import MARKER

QUESTION = "mcpServer/elicitation/request"
ASKING = {
    "granular": {
        "sandbox_approval": False,
        "rules": False,
        "skill_approval": False,
        "request_permissions": False,
        "mcp_elicitations": True,
    }
}
"""The approval policy `never`, but for calls of MCP servers: with `never` those that are to be asked about are refused."""


def settings(servers: Sequence[McpServer], users: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The servers as the CLI's settings have them. `users` are the names of servers in the user's own: settings are merged by
    name, and one of these could say that a tool of the same name runs unasked."""
    return {name: _setting(server) for name, server in by_safe_name(servers, users).items()}


def _setting(server: McpServer) -> dict[str, Any]:
    asks = {"default_tools_approval_mode": "prompt"}
    if server.transport == "stdio":
        # The CLI starts it with little of its own environment; by the marker it is found when its session ends.
        env = {"env": dict(server.env), "env_vars": [MARKER]}
        return {"command": server.command, "args": list(server.args), **env, **asks}
    return {"url": server.url, "http_headers": dict(server.headers), **asks}


def call_asked_about(params: Mapping[str, Any], calls: Iterable[Call]) -> Call | None:
    """Which of the open calls the CLI asks about; None if it is a server that asks for something itself."""
    about = params.get("_meta")
    if not isinstance(about, dict) or about.get("codex_approval_kind") != "mcp_tool_call":
        return None
    name, given = mcp_name(params["serverName"], about["tool_name"]), about.get("tool_params") or {}
    return next((call for call in calls if call.name == name and call.input == given), None)
