"""The policy file of a gemini session, which decides which tools the CLI allows, denies or asks about. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drivers.contract.driver_info import ToolGrant, ToolSpec
from drivers.contract.mcp_servers import McpServer
from drivers.gemini.tools import NAMES, SHELL, app_tool_name, native_tool_name

READING = frozenset({"glob", "grep_search", "list_directory", "read_file", "google_web_search"})
"""Tools that the CLI's default policy allows in every mode."""
IN_YOLO, IN_PLAN = 'modes = ["yolo"]', 'modes = ["plan"]'
NOT_IN_YOLO = 'modes = ["default", "autoEdit", "plan"]'
ASKING, EDITING = 'modes = ["default", "plan"]', 'modes = ["autoEdit", "yolo"]'
NOT_IN_PLAN = 'modes = ["default", "autoEdit", "yolo"]'
OWN_DEFAULT = 2
"""The priority of the rules of the CLI's default policy. In the CLI all rules of the user go before them."""
SERVERS_DENIED = 998
"""The priority of the user's rules that deny tools of MCP servers. Only trusted and application-side tools go before them."""
FIRST = 999
"""The highest priority of a rule: neither a user's rule nor a trusted tool goes before what plan mode denies."""


def policy_file(
    grants: Iterable[ToolGrant],
    app_tools: Iterable[ToolSpec] = (),
    servers: Sequence[McpServer] = (),
    *,
    own_modes: bool = False,
) -> str:
    """The TOML text. A tool without a rule is denied, which removes it from the model's request.

    grants: trusted tools are allowed, others ask. Tools of `servers` ask by one rule; a trusted one has its own.
    app_tools: application-side tools are allowed, since the client runs them. Each has a rule by its full name: the CLI lists a
        server's tools under `portico`, but looks up the rule of a call under `mcp_portico`.
    servers: the client's MCP servers.
    own_modes: whether the CLI decides about the calls of tools that are not trusted. They have the rules of the CLI's default
        policy then: those of the user's policy files go before them as they do in the CLI. In plan mode only the tools that read
        are left, whether others are trusted or not.

    The shell's rule has a pattern that matches every command. Without one the CLI runs commands that it considers safe (`ls`,
    `cat`) without asking (measured with 0.61.0).
    """
    rules = [_rule("*", "deny", 1 if own_modes else 900)]
    for grant in grants:
        if own_modes and grant.name in NAMES and not grant.trust:
            rules += _default_rules(grant.name)
        elif grant.name in NAMES:
            modes = (NOT_IN_PLAN,) if own_modes and grant.name not in READING else ()
            extra = ('argsPattern = "."', "allowRedirection = true") if grant.name == SHELL else ()
            rules.append(_rule(grant.name, "allow" if grant.trust else "ask_user", 999, *extra, *modes))
        elif grant.trust and (native := native_tool_name(grant.name, servers)):
            rules.append(_rule(native, "allow", 999, *((NOT_IN_PLAN,) if own_modes else ())))
    rules += [_rule(app_tool_name(tool.name), "allow", 999) for tool in app_tools]
    rules += [_rule("mcp_*", "ask_user", 950)] if servers else []
    rules += [_rule("mcp_*", "allow", 997, IN_YOLO)] if servers and own_modes else []
    rules += [_rule(name, "deny", FIRST, IN_PLAN) for name in sorted(NAMES - READING)] if own_modes else []
    return "\n".join(rules)


def _default_rules(name: str) -> list[str]:
    """The rules of the CLI's default policy for a tool (its files policies/*.toml, 0.61.0)."""
    if name in READING:
        return [_rule(name, "allow", OWN_DEFAULT)]
    if name == SHELL:
        return [
            _rule(name, "ask_user", OWN_DEFAULT, NOT_IN_YOLO),
            _rule(name, "allow", OWN_DEFAULT, IN_YOLO, "allowRedirection = true"),
        ]
    return [_rule(name, "ask_user", OWN_DEFAULT, ASKING), _rule(name, "allow", OWN_DEFAULT, EDITING)]


def _rule(name: str, decision: str, priority: int, *extra: str) -> str:
    lines = ("[[rule]]", f'toolName = "{name}"', f'decision = "{decision}"', f"priority = {priority}", *extra)
    return "\n".join(lines) + "\n"
