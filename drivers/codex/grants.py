"""The tools of codex, and how the grants of a session become settings of the CLI and answers to its requests.

Measured with codex 0.169.0. With the approval policy `untrusted` the CLI requests approval of every command and patch, even `ls`;
but an accepted command or patch may run outside of its sandbox. With `on-request` and `never` it runs them inside the sandbox
without approval. So the sandbox limits trusted tools, and the client's permission those that are not trusted, never the other way
round. An accepted patch follows a link that replaces a folder after the approval: only a sandbox of the kernel prevents that.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from drivers.codex.modes import FULL_ACCESS, MODES, PLAN_TOOL, QUESTION_TOOL, WORKSPACE, sandbox_of
from drivers.contract.agent_specs import no_rules
from drivers.contract.driver_info import ASK_MODE, ToolGrant, ToolSpec

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
        "Adds, changes, moves and deletes files. With trust it does so in the working folder without asking, if a sandbox "
        "confines it there; otherwise it asks, and `reason` states why.",
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
                },
                "reason": _TEXT,
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
    ToolSpec(
        QUESTION_TOOL,
        "Asks the user questions with options, in the mode plan; the answers are the result of the call.",
        {"type": "object", "properties": {"questions": {"type": "array"}}, "required": ["questions"]},
        "Questions",
    ),
    ToolSpec(
        PLAN_TOOL,
        "Asks the user to approve the plan that the mode plan has led to, and in which mode it is carried out.",
        {"type": "object", "properties": {"plan": _TEXT}, "required": ["plan"]},
        "Implement plan",
        kind="switch_mode",
    ),
)

CLOSED_FEATURES = (
    "apps", "goals", "image_generation", "multi_agent", "multi_agent_v2", "plugins", "skill_search", "sleep_tool", "tool_suggest",
)  # fmt: skip
"""Features that give the model tools which no client has listed."""

NOT_CONFINED = (
    "no sandbox confines this patch to the folders of the session, where a program could replace a folder by a link. To "
    'apply such patches without asking, set sandbox = "workspace-write" for the agent, or trust its shell too'
)
"""Why the client is asked about a patch although its tool is trusted."""

Policy = Literal["untrusted", "on-request", "never"]
Verdict = Literal["accept", "decline", "ask", "check"]
"""`check`: find out if all its paths lead into the session's folders. A codec cannot read the file system."""


class Preset(NamedTuple):
    """An approval policy and a sandbox of the CLI. In the mode `ask` there are three, by the trust of the shell and of patches.

    | trusted | policy | |
    |---|---|---|
    | both | `never` | Both run in the sandbox without a question. |
    | the shell | `on-request`, `read-only` | Commands run in the sandbox, which forbids all patches: each is asked about. |
    | neither, or patches | `untrusted` | Each command and each patch is asked about. |

    Where there is no sandbox, a shell that is trusted alone has `untrusted` too, and its requests are accepted.
    """

    policy: Policy
    sandbox: str


@dataclass(frozen=True, slots=True)
class Grants:
    """The grants of one session, and the sandbox of its trusted tools.

    Attributes:
        sandbox: The option `sandbox`, without `default`, as narrowed by the mode.
        confined: Whether all processes of the CLI are in the gateway's sandbox.
        mode: The CLI's own mode of the session, in which the CLI decides what it asks about; None where the gateway asks about
            each call of an untrusted tool.
        ruled: The tools that a rule of the gateway may deny or ask about.
        lasting_choices: Whether the client's choices may add rules to the CLI's files.
        option: The option `sandbox`.
    """

    trust: Mapping[str, bool]
    sandbox: str
    folders: Sequence[str]
    confined: bool = False
    mode: str | None = None
    ruled: frozenset[str] = frozenset()
    lasting_choices: bool = True
    option: str = ""

    @classmethod
    def of(
        cls,
        tools: Sequence[ToolGrant],
        option: str,
        folders: Sequence[str],
        *,
        confined: bool = False,
        mode: str | None = None,
        ruled: Callable[[str], bool] = no_rules,
        lasting_choices: bool = True,
    ) -> Grants:
        """The grants of a session, given the `option` `sandbox`; its working folder is the first of `folders`.

        With rules about commands or patches, the mode is none of the CLI's: it would not ask before it runs what they deny. Nor
        is it if the CLI would apply patches without the tool for them: that cannot be removed from the model's request.
        """
        found = frozenset(tool.name for tool in tools if ruled(tool.name))
        trust = {tool.name: tool.trust for tool in tools}
        own_mode = None if found & {"shell", "apply_patch"} or mode in closed_modes(trust) else mode
        return cls(trust, _sandbox(mode, option), folders, confined, own_mode, found, lasting_choices, option)

    def in_mode(self, mode: str) -> Grants | None:
        """The same grants in another of the CLI's own modes; None unless both modes are the CLI's."""
        if self.mode is None or mode not in _OWN_MODES - closed_modes(self.trust):
            return None
        return replace(self, mode=mode, sandbox=_sandbox(mode, self.option))

    def trusts(self, name: str) -> bool:
        return self.trust.get(name, False)

    def needs_permission(self, name: str) -> bool:
        """Whether the tool is granted but not trusted."""
        return self.trust.get(name) is False

    @property
    def preset(self) -> Preset:
        """The approval policy and the sandbox of the session."""
        # The CLI cannot make its own sandbox within the gateway's, which allows the same.
        sandbox = cli_sandbox(self.sandbox, confined=self.confined)
        if self.mode is not None:
            return Preset("never" if self.mode == FULL_ACCESS else "on-request", sandbox)
        if self.trusts("shell") and self.trusts("apply_patch"):
            return Preset("never", sandbox)
        if self.trusts("shell") and sandbox != "danger-full-access":
            # The CLI requests approval of patches only where the sandbox forbids them.
            return Preset("on-request", "read-only")
        return Preset("untrusted", sandbox)

    @property
    def runs_unasked(self) -> bool:
        """Whether the CLI runs commands without asking: in its sandbox."""
        return "shell" in self.trust and self.preset.policy != "untrusted"

    @property
    def client_decides_patches(self) -> bool:
        """Whether neither trust nor a rule may accept a patch: no sandbox would confine it to the session's folders."""
        return not self.confined and self.sandbox != "danger-full-access"

    @property
    def asks_despite_trust(self) -> bool:
        """Whether the client is asked about every patch although the tool is trusted, for lack of a sandbox."""
        # With the option `read-only` that is why, not the lack of a sandbox.
        asks = self.sandbox == "workspace-write" and not self.confined
        return asks and self.trusts("apply_patch") and self.mode is None and self.preset.policy == "untrusted"

    def config(self) -> dict[str, Any]:
        """Settings of the CLI that remove every tool that is not granted."""
        features = dict.fromkeys(CLOSED_FEATURES, False)
        features |= {"shell_tool": "shell" in self.trust, "view_image": self._has("view_image")}
        config: dict[str, Any] = {"features": features}
        if not self._has("web_search"):
            config["web_search"] = "disabled"
        return config

    def verdict(self, name: str, params: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> Verdict:
        """The answer to a request for approval, given its `params` and the `changes` of a patch."""
        if name not in self.trust:
            return "decline"
        if params.get("kind", "command") != "command":
            # More input for a running terminal: part of a trusted shell, but of no call that a client could permit.
            trusted = self.mode is None and self.preset.policy == "untrusted" and self.trusts("shell")
            return "accept" if trusted else "decline"
        if not self.trusts(name) or self.mode is not None:
            return "ask"
        if name == "apply_patch":
            if self.sandbox == "danger-full-access":
                return "accept"
            # With `never` the CLI requests approval only of what must leave its sandbox: the client decides then.
            return "check" if self._inside(changes) and self.preset.policy != "never" else "ask"
        # With `on-request` the CLI requests approval only of what must leave the sandbox.
        return "accept" if self.preset.policy == "untrusted" else "decline"

    def _has(self, name: str) -> bool:
        """Whether a tool about which the CLI cannot ask is available: trusted, or left to the CLI."""
        return self.trusts(name) or (self.mode is not None and name in self.trust and name not in self.ruled)

    def _inside(self, changes: Sequence[Mapping[str, Any]]) -> bool:
        paths = [posixpath.normpath(posixpath.join(self.folders[0], path)) for path in paths_of(changes)]
        inside = all(any(path.startswith(folder.rstrip("/") + "/") for folder in self.folders) for path in paths)
        return self.sandbox == "workspace-write" and bool(paths) and inside


_OWN_MODES = frozenset(mode.id for mode in MODES)


def closed_modes(listed: Container[str]) -> frozenset[str]:
    """Return the modes of the CLI in which it would apply patches without a question although the tool is not listed."""
    return frozenset() if "apply_patch" in listed else frozenset({WORKSPACE, FULL_ACCESS})


def _sandbox(mode: str | None, option: str) -> str:
    sandbox = sandbox_of(mode or ASK_MODE, option)
    return "workspace-write" if sandbox in ("", "default") else sandbox


def cli_sandbox(option: str, *, confined: bool) -> str:
    """The CLI's sandbox for the option `sandbox`: none within that of the gateway, where it cannot be made (0.169.0, Linux)."""
    return "danger-full-access" if confined and option == "workspace-write" else option


def paths_of(changes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The paths that the changes of a patch write to."""
    return [str(path) for change in changes for path in (change.get("path"), change.get("move_path")) if path]
