"""The policy file of a gemini session, which decides which tools the CLI allows, denies or asks about. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drivers.contract.driver_info import ToolGrant, ToolSpec
from drivers.contract.mcp_servers import McpServer
from drivers.gemini.tools import NAMES, SHELL, app_tool_name, native_tool_name


def policy_file(grants: Iterable[ToolGrant], app_tools: Iterable[ToolSpec] = (), servers: Sequence[McpServer] = ()) -> str:
    """The TOML text. A tool without a rule is denied, which removes it from the model's request.

    grants: trusted tools are allowed, others ask. Tools of `servers` ask by one rule; a trusted one has its own.
    app_tools: application-side tools are allowed, since the client runs them. Each has a rule by its full name: the CLI lists a
        server's tools under `portico`, but looks up the rule of a call under `mcp_portico`.
    servers: the client's MCP servers.

    The shell's rule has a pattern that matches every command. Without one the CLI runs commands that it considers safe (`ls`,
    `cat`) without asking (measured with 0.61.0).
    """
    rules = [_rule("*", "deny", 900)]
    for grant in grants:
        if grant.name in NAMES:
            extra = ('argsPattern = "."', "allowRedirection = true") if grant.name == SHELL else ()
            rules.append(_rule(grant.name, "allow" if grant.trust else "ask_user", 999, *extra))
        elif grant.trust and (native := native_tool_name(grant.name, servers)):
            rules.append(_rule(native, "allow", 999))
    rules += [_rule(app_tool_name(tool.name), "allow", 999) for tool in app_tools]
    rules += [_rule("mcp_*", "ask_user", 950)] if servers else []
    return "\n".join(rules)


def _rule(name: str, decision: str, priority: int, *extra: str) -> str:
    lines = ("[[rule]]", f'toolName = "{name}"', f'decision = "{decision}"', f"priority = {priority}", *extra)
    return "\n".join(lines) + "\n"
