"""The modes of the gemini CLI itself, and the user's own rules about tools, which apply in them.

Measured with gemini 0.61.0.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Container, Mapping
from pathlib import Path
from typing import Any

from drivers.contract.agent_specs import SessionSpec
from drivers.contract.driver_info import ASK_MODE, MODE_OPTION, PermissionMode
from drivers.contract.errors import AgentUnavailable
from drivers.gemini.policy import OWN_DEFAULT, SERVERS_DENIED
from drivers.gemini.tools import NAMES
from drivers.runtime.confined_files import NotRegularFile, OutsideFolders, read_file

MODES = (
    PermissionMode("default", "Default", "Asks by the CLI's own rules: reading and searching do not ask."),
    PermissionMode("autoEdit", "Auto edit", "As Default, but edits files without asking."),
    PermissionMode("plan", "Plan", "Reads and searches only; the plan is text of the answer."),
    PermissionMode("yolo", "YOLO", "Asks about nothing.", unrestricted=True),
)
USER_POLICY = "user-"
"""The names of the user's policy files in the home of a session begin so."""
MAX_POLICY = 1024 * 1024
"""Bytes of a policy file of the user, or of a project's settings, that are read."""
SERVER_TOOLS = "mcp_"
"""The names of tools of MCP servers begin so."""
MCP_PREFIX = "mcp__"
"""The names of the tools of the client's MCP servers begin so in events."""
_PERMITTING = (b"tools", b"\\")
"""In a project's settings: the object of the settings about tools, and an escaped character."""


def own_mode(spec: SessionSpec) -> str | None:
    """Return the CLI's own mode of a session; None where the gateway asks about each call of an untrusted tool.

    With a rule of the gateway about any tool, or about one that the client's MCP servers may have, it is None: another rule of
    the CLI, or a mode, could run what the gateway denies.
    """
    mode = spec.options.get(MODE_OPTION, ASK_MODE)
    ruled = any(spec.permissions.ruled(name) for name in NAMES) or (
        bool(spec.mcp_servers) and spec.permissions.ruled(f"{MCP_PREFIX}*")
    )
    return None if mode == ASK_MODE or ruled else mode


def project_permits(folder: Path) -> bool:
    """Whether the project's settings may let tools run without a question, or cannot be read. It blocks.

    Their `tools.allowed` and `tools.core` are merged with the user's. An escaped character could hide a name.
    """
    try:
        text = read_file(folder / ".gemini" / "settings.json", MAX_POLICY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, NotRegularFile):
        return True
    return any(name in text for name in _PERMITTING)


def user_rules(settings: Mapping[str, Any], listed: Container[str]) -> dict[str, Any]:
    """Return the part of the user's settings that allows listed tools (`run_shell_command(git)`), and that removes tools."""
    tools = settings.get("tools")
    if not isinstance(tools, dict):
        return {}
    given = {name: tools[name] for name in ("allowed", "exclude") if isinstance(tools.get(name), list)}
    if "allowed" in given:
        given["allowed"] = [entry for entry in given["allowed"] if str(entry).partition("(")[0] in listed]
    return {"tools": given} if given else {}


def user_policies(user: Path, listed: Collection[str], *, confined: bool = False) -> dict[str, bytes]:
    """Return the user's policy files with their rules about listed tools, by their names. It blocks.

    Another rule could allow a tool that the session does not list, since it goes before the one that denies all others.
    Rules that deny stay, and go before the gateway's. For a `confined` agent, which gets what is read, no link is followed that
    leads out of the folder `user`. Raises AgentUnavailable for a file that cannot be read.
    """
    found: dict[str, bytes] = {}
    for path in _policy_files(user / "policies"):
        if path.exists() and not path.is_file():
            # The CLI reads regular files only.
            continue
        try:
            rules = tomllib.loads(read_file(path, MAX_POLICY, inside=user if confined else None).decode()).get("rule")
        except (OSError, ValueError, NotRegularFile, OutsideFolders) as error:
            raise _unreadable(path, error) from None
        kept = (
            [line for rule in rules if isinstance(rule, dict) for line in _rule(rule, listed)] if isinstance(rules, list) else []
        )
        if kept:
            found[USER_POLICY + path.name] = "\n".join(kept).encode()
    return found


def _policy_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".toml")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(folder, error) from None


def _unreadable(path: Path, error: Exception) -> AgentUnavailable:
    return AgentUnavailable(
        f"the policies in {path} cannot be read, and may have rules that deny ({error}): correct or remove them, or set the "
        "option settings to none"
    )


def _rule(rule: Mapping[str, Any], listed: Collection[str]) -> list[str]:
    """Return the lines of a rule about listed tools, and of one that denies any tools."""
    named = rule.get("toolName")
    names = [name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)]
    if rule.get("decision") != "deny":
        about = [] if "mcpName" in rule else sorted(listed) if "*" in names else [name for name in names if name in listed]
        return _lines(rule, about)
    if "mcpName" in rule:
        return _lines({**rule, "priority": SERVERS_DENIED}, names)
    of_servers = [name for name in names if name.startswith(SERVER_TOOLS)] + ([f"{SERVER_TOOLS}*"] if "*" in names else [])
    given = rule.get("priority")
    priority = {"priority": max(given, OWN_DEFAULT + 1)} if isinstance(given, int) else {}
    others = [name for name in names if not name.startswith(SERVER_TOOLS)]
    return [*_lines({**rule, **priority}, others), *_lines({**rule, "priority": SERVERS_DENIED}, of_servers)]


def _lines(rule: Mapping[str, Any], about: list[str]) -> list[str]:
    if not about:
        return []
    plain = {key: value for key, value in {**rule, "toolName": about}.items() if key.isidentifier() and _is_plain(value)}
    if len(plain) < len(rule) and rule.get("decision") == "allow":
        # Without one of its conditions it would allow more; one that asks or denies does so more often.
        return []
    # JSON of texts, numbers and lists of texts is TOML too, apart from one character.
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f") for key, value in plain.items())
    return ["[[rule]]", *lines, ""]


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | bool | int) or (isinstance(value, list) and all(isinstance(one, str) for one in value))
