"""The gemini CLI's tools: a fixed table of its own, since the CLI has no way to list them, and the names of MCP tools. No I/O.

As of gemini 0.61.0. The table omits tools that run others or change the CLI itself (invoke_agent, activate_skill, plan mode):
the calls inside them could not be asked about one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from drivers.contract.driver_info import ToolKind, ToolSpec
from drivers.contract.mcp_servers import McpServer, by_safe_name

SHELL = "run_shell_command"
SERVER = "portico"
"""The name of the MCP server of the application-side tools."""
LONGEST_NAME = 63
"""Characters of a tool's name; the CLI removes the middle of a longer one."""

_TEXT, _NUMBER, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}


def _tool(name: str, kind: ToolKind, description: str, required: Mapping[str, Any], /, **optional: Any) -> ToolSpec:
    schema = {"type": "object", "properties": {**required, **optional}, "required": [*required]}
    return ToolSpec(name, description, schema, kind=kind)


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


def tool_of_call(call_id: str, kind: str) -> str:
    """The name of a call's tool, else its kind. The CLI prefixes the model's call id with the tool's name and `__`."""
    own = next((name for name in NAMES if call_id.startswith(f"{name}__")), None)
    of_server = re.match(r"mcp_([A-Za-z0-9-]+)_(.+?)__", call_id)
    return own or (f"mcp__{of_server[1]}__{of_server[2]}" if of_server else kind)


def rename_servers(servers: Sequence[McpServer], taken: Iterable[str] = ()) -> list[McpServer]:
    """The client's MCP servers under names that make the names of their tools unambiguous.

    The CLI joins server and tool by `_`, so a server's name contains none. No name is SERVER or one of `taken`.
    """
    plain = [replace(server, name=re.sub(r"[^a-z0-9]+", "-", server.name.lower()).strip("-")) for server in servers]
    return [replace(server, name=name) for name, server in by_safe_name(plain, (SERVER, *taken)).items()]


def server_prefixes(servers: Iterable[McpServer]) -> tuple[str, ...]:
    """The prefixes of the names that clients see of these servers' tools."""
    return tuple(f"mcp__{server.name}__" for server in servers)


def app_tool_name(name: str) -> str:
    """The CLI's name of an application-side tool, made of the names of server and tool."""
    whole = re.sub(r"[^a-zA-Z0-9_\-.:]", "_", f"mcp_{SERVER}_{name}")
    return whole if len(whole) <= LONGEST_NAME else f"{whole[:30]}...{whole[-30:]}"


def native_tool_name(name: str, servers: Iterable[McpServer]) -> str | None:
    """The CLI's name of a tool of one of these servers, from the name that clients see; None for any other tool."""
    prefix = next((prefix for prefix in server_prefixes(servers) if name.startswith(prefix)), None)
    native = prefix and f"mcp_{prefix[5:-2]}_{name.removeprefix(prefix)}"
    return native if native and re.fullmatch(r"[\w.:-]{1,63}", native, re.ASCII) else None
