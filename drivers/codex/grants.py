"""The tools of codex, and how the grants of a session become settings of the CLI and answers to its requests.

Measured with codex 0.169.0. With the approval policy `untrusted` the CLI requests approval of every command and patch, even `ls`;
but an accepted command may run outside of its sandbox. With `on-request` and `never` it runs commands inside the sandbox without
approval. So the sandbox limits trusted tools, and the client's permission those that are not trusted, never the other way round.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from drivers.contract.driver_info import ToolGrant, ToolSpec

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
Verdict = Literal["accept", "decline", "ask", "check"]
"""`check`: accept it if all its paths lead into the session's folders, else ask. A codec cannot read the file system."""


@dataclass(frozen=True, slots=True)
class Grants:
    """The grants of one session, and the sandbox of its trusted tools."""

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

    def needs_permission(self, name: str) -> bool:
        """Whether the tool is granted but not trusted."""
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
        # The CLI requests approval of patches only where the sandbox forbids them: then a trusted shell can only read.
        return "read-only" if self.policy == "on-request" else self.sandbox

    def config(self) -> dict[str, Any]:
        """Settings of the CLI that remove every tool that is not granted."""
        features = dict.fromkeys(CLOSED_FEATURES, False)
        features |= {"shell_tool": "shell" in self.trust, "view_image": self.trusts("view_image")}
        return {"features": features, **({} if self.trusts("web_search") else {"web_search": "disabled"})}

    def verdict(self, name: str, params: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> Verdict:
        """The answer to a request for approval, given its `params` and the `changes` of a patch."""
        if name not in self.trust:
            return "decline"
        if params.get("kind", "command") != "command":
            # More input for a running terminal: part of a trusted shell, but of no call that a client could permit.
            return "accept" if self.policy == "untrusted" and self.trusts("shell") else "decline"
        if not self.trusts(name):
            return "ask"
        if name == "apply_patch":
            if self.sandbox == "danger-full-access":
                return "accept"
            return "check" if self._inside(changes) else "ask"
        # With `on-request` the CLI requests approval only of what must leave the sandbox.
        return "accept" if self.policy == "untrusted" else "decline"

    def _inside(self, changes: Sequence[Mapping[str, Any]]) -> bool:
        paths = [posixpath.normpath(posixpath.join(self.folders[0], path)) for path in paths_of(changes)]
        inside = all(any(path.startswith(folder.rstrip("/") + "/") for folder in self.folders) for path in paths)
        return self.sandbox == "workspace-write" and bool(paths) and inside


def paths_of(changes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The paths that the changes of a patch write to."""
    return [str(path) for change in changes for path in (change.get("path"), change.get("move_path")) if path]
