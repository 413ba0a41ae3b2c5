"""Which MCP servers a client may bring for a session (`agents.NAME.mcp`), and what the audit records of them. Does no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from drivers.contract.mcp_servers import McpServer
from gateway.config import AgentSettings, ListedMcpServer
from gateway.errors import Forbidden
from gateway.security.redaction import HIDDEN, redact_patterns

_FLAG = re.compile(r"-[\w.-]+")
_SECRETS = ("key", "token", "secret", "password", "passwd", "auth", "header", "credential")
"""Parts of the flags after which a secret follows, in lower case."""


def check_client_servers(agent: str, settings: AgentSettings, servers: Sequence[McpServer]) -> None:
    """Raise Forbidden for the first server that the agent's configuration does not allow."""
    for n, server in enumerate(servers):
        if settings.mcp == "none":
            raise Forbidden(f"mcpServers[{n}]: agent {agent!r} allows no MCP servers of clients (agents.{agent}.mcp); send none")
        if not _is_allowed(settings, server):
            raise Forbidden(
                f"mcpServers[{n}]: the MCP server {server.name[:100]!r} is not one of agents.{agent}.mcp_servers: its command "
                "and arguments, or its address, must be those of an entry, and its variables must be named there"
            )


def allowed_servers(settings: AgentSettings, servers: Iterable[McpServer]) -> tuple[McpServer, ...]:
    """Return the servers that the agent's configuration allows."""
    return tuple(server for server in servers if _is_allowed(settings, server))


def _is_allowed(settings: AgentSettings, server: McpServer) -> bool:
    return settings.mcp == "any" or (settings.mcp == "listed" and any(_is_entry(entry, server) for entry in settings.mcp_servers))


def _is_entry(entry: ListedMcpServer, server: McpServer) -> bool:
    if server.transport != "stdio":
        return entry.url is not None and server.url == entry.url
    # A variable such as PATH or LD_PRELOAD changes what a command runs.
    return (server.command, server.args) == (entry.command, entry.args) and set(server.env) <= set(entry.env)


def audit_arguments(server: McpServer) -> dict[str, Any]:
    """Return what a server starts or connects to, with the names of its variables and headers.

    Values of variables are not redacted in the arguments: the client chooses them, and could hide what the server runs.
    """
    if server.transport != "stdio":
        return {"transport": server.transport, "url": _address(server.url), "headers": sorted(server.headers)}
    words = [redact_patterns(word) for word in (server.command, *server.args)]
    args = [HIDDEN if _precedes_secret(before) else word for before, word in pairwise(words)]
    return {"transport": "stdio", "command": words[0], "args": args, "env": sorted(server.env)}


def _precedes_secret(argument: str) -> bool:
    return _FLAG.fullmatch(argument) is not None and any(map(argument.lower().__contains__, _SECRETS))


def _address(url: str) -> str:
    """Return a URL without its user, password, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query=HIDDEN if parts.query else "", fragment="").geturl()
