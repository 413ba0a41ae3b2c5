"""The MCP servers of a session that its client configures, in the forms that CLIs take. No state."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Transport = Literal["stdio", "http", "sse"]


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server of a session's client: a program to start, or an address."""

    name: str
    """The client's name of it. `by_safe_name` makes names that can be part of a tool's name."""
    transport: Transport = "stdio"
    """How the CLI connects to it: `stdio` starts a program."""
    command: str = ""
    """The program."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Its variables, which hold secrets."""
    url: str = ""
    """The address, for the other transports."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The headers of requests to it, which hold secrets."""

    def as_json(self) -> dict[str, Any]:
        """The server in the form of the CLIs' own configuration files."""
        if self.transport == "stdio":
            return {"type": "stdio", "command": self.command, "args": list(self.args), "env": dict(self.env)}
        return {"type": self.transport, "url": self.url, "headers": dict(self.headers)}


def to_text(servers: Iterable[McpServer]) -> str:
    """A text that `from_text` reads, to be encrypted and stored."""
    return json.dumps([{"name": server.name, **server.as_json()} for server in servers])


def from_text(text: str) -> tuple[McpServer, ...]:
    """The servers of a text that `to_text` made."""
    return tuple(
        McpServer(
            one["name"],
            one["type"],
            one.get("command", ""),
            tuple(one.get("args", ())),
            one.get("env", {}),
            one.get("url", ""),
            one.get("headers", {}),
        )
        for one in json.loads(text)
    )


def by_safe_name(servers: Sequence[McpServer], taken: Iterable[str] = ()) -> dict[str, McpServer]:
    """The servers by unique names that can be part of a tool's name: letters, digits, `_` and `-`, none of `taken`."""
    used = set(taken)
    found: dict[str, McpServer] = {}
    for server in servers:
        base = re.sub(r"[^A-Za-z0-9_-]", "_", server.name)[:32] or "server"
        # Two of them separate a server's name from its tool's.
        base = re.sub(r"_{2,}", "_", base)
        name, n = base, 1
        while name in used:
            n += 1
            name = f"{base}-{n}"
        used.add(name)
        found[name] = server
    return found
