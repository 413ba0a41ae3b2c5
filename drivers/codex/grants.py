"""What codex may do in a session: its own tools by name, and how a session's grants become the CLI's settings and answers.

Measured with codex 0.169.0. Its approval policy `untrusted` asks for every command and every patch, even `ls`; but what is then
accepted may run outside of its sandbox. `on-request` and `never` run commands inside the sandbox without asking. So a sandbox
bounds trusted tools, and the client's word those that are not trusted; never one in place of the other.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from drivers.contract.info import ToolGrant, ToolSpec

_TEXT = {"type": "string"}
TOOLS = (
    ToolSpec(
        "shell",
        "Runs a command in a shell of the machine. `reason` is the model's own justification, where it gave one. "
        "With trust it runs inside the sandbox without asking; a command that is granted may run outside of it.",
        {
            "type": "object",
            "properties": {"command": _TEXT, "cwd": _TEXT, "reason": _TEXT},
            "required": ["command"],
        },
        "Shell",
        kind="execute",
    ),
    ToolSpec(
        "apply_patch",
        "Adds, changes, moves and deletes files. With trust it does so in the working folder without asking.",
        {
            "type": "object",
            "properties": {
                "changes": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "path": _TEXT,
                            "kind": {"enum": ["add", "update", "delete"]},
                            "diff": _TEXT,
                            "move_path": _TEXT,
                        },
                        "required": ["path", "kind"],
                    },
                }
            },
            "required": ["changes"],
        },
        "Edit files",
        kind="edit",
    ),
    ToolSpec(
        "view_image",
        "Shows an image file of the machine to the model. The CLI cannot ask for it: it is there with trust only.",
        {"type": "object", "properties": {"path": _TEXT}, "required": ["path"]},
        "View image",
        kind="read",
    ),
    ToolSpec(
        "web_search",
        "Searches the web, at the model's provider. The CLI cannot ask for it: it is there with trust only.",
        {"type": "object", "properties": {"query": _TEXT}, "required": ["query"]},
        "Web search",
        kind="fetch",
    ),
)

CLOSED_FEATURES = (
    "apps", "goals", "image_generation", "multi_agent", "multi_agent_v2", "plugins", "skill_search", "sleep_tool", "tool_suggest",
)  # fmt: skip
"""Features that give the model tools which no client has listed."""

Policy = Literal["untrusted", "on-request", "never"]
Verdict = Literal["accept", "decline", "ask"]


@dataclass(frozen=True, slots=True)
class Grants:
    """The grants of one session, and the sandbox that bounds what it trusts."""

    trust: Mapping[str, bool]
    sandbox: str
    folders: Sequence[str]

    @classmethod
    def of(cls, tools: Sequence[ToolGrant], sandbox: str, folders: Sequence[str]) -> Grants:
        """The grants of a session with the option `sandbox`; its working folder is the first of `folders`."""
        sandbox = "workspace-write" if sandbox in ("", "default") else sandbox
        return cls({tool.name: tool.trust for tool in tools}, sandbox, folders)

    def trusts(self, name: str) -> bool:
        return self.trust.get(name, False)

    def asks(self, name: str) -> bool:
        """Whether the client is to be asked for it."""
        return self.trust.get(name) is False

    @property
    def policy(self) -> Policy:
        """The CLI's approval policy."""
        if not self.trusts("shell"):
            return "untrusted"
        if self.trusts("apply_patch"):
            return "never"
        return "untrusted" if self.sandbox == "danger-full-access" else "on-request"

    @property
    def sandbox_mode(self) -> str:
        """The CLI's sandbox."""
        # Patches are asked for only where the sandbox forbids them: beside them a trusted shell reads, and only reads.
        return "read-only" if self.policy == "on-request" else self.sandbox

    def config(self) -> dict[str, Any]:
        """Settings of the CLI's that take away every tool that is not granted."""
        features = dict.fromkeys(CLOSED_FEATURES, False)
        features |= {"shell_tool": "shell" in self.trust, "view_image": self.trusts("view_image")}
        return {"features": features, **({} if self.trusts("web_search") else {"web_search": "disabled"})}

    def verdict(self, name: str, params: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> Verdict:
        """What to answer when the CLI asks for permission, with the request's `params` and a patch's `changes`."""
        if name not in self.trust:
            return "decline"
        if params.get("kind", "command") != "command":
            # More input for a terminal that runs: part of a trusted shell, and of no call that a client could be asked for.
            return "accept" if self.policy == "untrusted" and self.trusts("shell") else "decline"
        if not self.trusts(name):
            return "ask"
        if name == "apply_patch":
            return "accept" if self.sandbox == "danger-full-access" or self._inside(changes) else "ask"
        # With `on-request` only what wants to leave the sandbox asks.
        return "accept" if self.policy == "untrusted" else "decline"

    def _inside(self, changes: Sequence[Mapping[str, Any]]) -> bool:
        cwd = self.folders[0]
        given = [path for change in changes for path in (change.get("path"), change.get("move_path")) if path]
        paths = [posixpath.normpath(posixpath.join(cwd, str(path))) for path in given]
        inside = all(any(path.startswith(folder.rstrip("/") + "/") for folder in self.folders) for path in paths)
        return self.sandbox == "workspace-write" and bool(paths) and inside
