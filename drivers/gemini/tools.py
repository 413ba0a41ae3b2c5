"""The gemini CLI's own tools: a fixed table, since the CLI has no way to list them, and the policy that grants them; pure.

As of gemini 0.61.0. Left out are tools that run others or change the CLI itself (invoke_agent, activate_skill, plan mode):
what is done inside them could not be asked for one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from drivers.contract.info import ToolGrant, ToolKind, ToolSpec
from drivers.contract.mcp_servers import McpServer, by_safe_name

SHELL = "run_shell_command"
SERVER = "portico"
"""The name of the MCP server of the application-side tools."""
LONGEST_NAME = 63
"""Characters of a tool's name; of a longer one the CLI leaves the middle out."""

_TEXT, _NUMBER, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}


def _tool(name: str, kind: ToolKind, does: str, required: Mapping[str, Any], /, **optional: Any) -> ToolSpec:
    schema = {"type": "object", "properties": {**required, **optional}, "required": [*required]}
    return ToolSpec(name, does, schema, kind=kind)


TOOLS = (
    _tool("list_directory", "search", "Lists the files and folders in a folder.", {"dir_path": _TEXT},
          ignore={"type": "array", "items": _TEXT}),
    _tool("read_file", "read", "Reads a file: text, image, audio or PDF.", {"file_path": _TEXT},
          start_line=_NUMBER, end_line=_NUMBER),
    _tool("grep_search", "search", "Searches for a regular expression in files.", {"pattern": _TEXT},
          dir_path=_TEXT, include_pattern=_TEXT, exclude_pattern=_TEXT, names_only=_FLAG),
    _tool("glob", "search", "Finds files by a pattern, newest first.", {"pattern": _TEXT}, dir_path=_TEXT, case_sensitive=_FLAG),
    _tool("replace", "edit", "Replaces text in a file.", {"file_path": _TEXT, "old_string": _TEXT, "new_string": _TEXT},
          instruction=_TEXT, allow_multiple=_FLAG),
    _tool("write_file", "edit", "Writes a whole file.", {"file_path": _TEXT, "content": _TEXT}),
    _tool(SHELL, "execute", "Runs a command with bash.", {"command": _TEXT},
          description=_TEXT, dir_path=_TEXT, is_background=_FLAG),
    _tool("web_fetch", "fetch", "Gets web pages and answers a question about them.", {"prompt": _TEXT}),
    _tool("google_web_search", "fetch", "Searches the web with Google.", {"query": _TEXT}),
)  # fmt: skip

NAMES = frozenset(tool.name for tool in TOOLS)


def name_of(call_id: str, kind: str) -> str:
    """The tool of a call, by its id: the CLI puts the tool's name and `__` before whatever id the model gave."""
    own = next((name for name in NAMES if call_id.startswith(f"{name}__")), None)
    of_server = re.match(r"mcp_([A-Za-z0-9-]+)_(.+?)__", call_id)
    return own or (f"mcp__{of_server[1]}__{of_server[2]}" if of_server else kind)


def own_servers(servers: Sequence[McpServer], taken: Iterable[str] = ()) -> list[McpServer]:
    """The servers that a client has brought along, by names that the CLI's names of their tools tell apart from all others:
    it joins server and tool by `_`, so there is none in a server's name; and none is the gateway's own, or one of `taken`."""
    plain = [replace(server, name=re.sub(r"[^a-z0-9]+", "-", server.name.lower()).strip("-")) for server in servers]
    return [replace(server, name=name) for name, server in by_safe_name(plain, (SERVER, *taken)).items()]


def server_tools(servers: Iterable[McpServer]) -> tuple[str, ...]:
    """How the names of the servers' tools begin, for clients."""
    return tuple(f"mcp__{server.name}__" for server in servers)


def app_name(name: str) -> str:
    """The CLI's name for an application-side tool, as it makes it of the names of the server and the tool."""
    whole = re.sub(r"[^a-zA-Z0-9_\-.:]", "_", f"mcp_{SERVER}_{name}")
    return whole if len(whole) <= LONGEST_NAME else f"{whole[:30]}...{whole[-30:]}"


def policy(grants: Iterable[ToolGrant], app_tools: Iterable[ToolSpec] = (), servers: Sequence[McpServer] = ()) -> str:
    """A policy file by which the granted tools run or ask, and no other tool is offered to the model at all.

    Application-side tools run: it is the client that runs them. Each has a rule by its whole name, since for a server's tools the
    CLI looks up rules by another name of the server when it runs them (`mcp_portico`) than when it offers them (`portico`).

    Tools of the client's own servers ask, all by one rule that names no server; those that are trusted have a rule each.

    The shell's rule has a pattern that matches any command: by a rule without one, commands that the CLI takes for safe
    (`ls`, `cat`) run without asking (measured with 0.61.0).
    """
    rules = [_rule("*", "deny", 900)]
    for grant in grants:
        if grant.name in NAMES:
            extra = ('argsPattern = "."', "allowRedirection = true") if grant.name == SHELL else ()
            rules.append(_rule(grant.name, "allow" if grant.trust else "ask_user", 999, *extra))
        elif grant.trust and (native := _native(grant.name, servers)):
            rules.append(_rule(native, "allow", 999))
    rules += [_rule(app_name(tool.name), "allow", 999) for tool in app_tools]
    rules += [_rule("mcp_*", "ask_user", 950)] if servers else []
    return "\n".join(rules)


def _native(name: str, servers: Iterable[McpServer]) -> str | None:
    """The CLI's name for a tool of one of the servers."""
    start = next((start for start in server_tools(servers) if name.startswith(start)), None)
    native = start and f"mcp_{start[5:-2]}_{name.removeprefix(start)}"
    return native if native and re.fullmatch(r"[\w.:-]{1,63}", native, re.ASCII) else None


def _rule(name: str, decision: str, priority: int, *extra: str) -> str:
    lines = ("[[rule]]", f'toolName = "{name}"', f'decision = "{decision}"', f"priority = {priority}", *extra)
    return "\n".join(lines) + "\n"
