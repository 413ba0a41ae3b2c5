"""The tools of a claude session: the CLI's own, and the application's as an MCP server on the control channel.

tools.json has the names and schemas of the CLI's own, as claude 2.1.329 sends them to the model (without its prose).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from drivers.claude.permissions import NATIVE, QUESTION_TOOL
from drivers.contract.agent_specs import no_rules
from drivers.contract.driver_info import PlanChange, ToolGrant, ToolKind, ToolSpec
from drivers.contract.mcp_servers import McpServer, by_safe_name
from drivers.contract.messages import AssistantMessage, Message, ToolUseBlock

Wants = Literal["result", "permission", "answer"]

OWN_TOOLS = tuple(ToolSpec(**tool) for tool in json.loads((Path(__file__).parent / "tools.json").read_text()))
OTHER_TOOLS: dict[str, ToolKind] = {
    "Task": "think", "TodoWrite": "think", "KillShell": "execute", "TaskOutput": "execute", "TaskStop": "execute",
}  # fmt: skip
"""Tools that sessions cannot list: aliases of the CLI (`Task`, `KillShell`), and those that it has where the agent's `env` allows
them, such as those for commands in the background."""
PLAN_TOOLS: dict[str, PlanChange] = {"TodoWrite": "replace", "TaskCreate": "add", "TaskUpdate": "update"}
MCP_PREFIX = "mcp__"
SERVER = "app"
PREFIX = f"{MCP_PREFIX}{SERVER}__"
LONGEST_NAME = 64
"""Of a tool, for the model's API."""
OUTPUT_TOOL = "StructuredOutput"
"""The tool by which the model gives the answer of a session with a JSON schema. The CLI has it in such sessions only."""
LARGEST_RESULT = 500_000
"""Characters of a result that reach the model; it is the most that the CLI takes, and writes what is longer to a file."""


class Toolset:
    """The tools of one session. Native names are those that the CLI and the model use.

    Parameters:
        mode: The CLI's own mode of the session, in which the CLI decides about calls of untrusted tools; None where the gateway
            asks about each.
        ruled: Whether a rule of the gateway may deny a call of a tool or ask about it.
        answers: Whether the model answers by a call of OUTPUT_TOOL.
    """

    def __init__(
        self,
        grants: Iterable[ToolGrant] = (),
        app_tools: Sequence[ToolSpec] = (),
        servers: Sequence[McpServer] = (),
        *,
        mode: str | None = None,
        ruled: Callable[[str], bool] = no_rules,
        answers: bool = False,
    ) -> None:
        self._mode, self._ruled, self._answers = mode, ruled, answers
        self._trust = {grant.name: grant.trust for grant in grants}
        self._servers = by_safe_name(servers, taken=(SERVER,))
        self._app = {PREFIX + name: tool for name, tool in zip(_safe_names(app_tools), app_tools, strict=True)}
        self._native = {tool.name: native for native, tool in self._app.items()}

    def is_answer(self, native: str) -> bool:
        """Whether a call of this tool is the answer of the model, which no client sees as a call."""
        return self._answers and native == OUTPUT_TOOL

    def wants(self, native: str) -> Wants | None:
        """What a call of this tool needs from the client; None if it runs, or is denied, without it."""
        if self.is_answer(native):
            return None
        if native in self._app:
            return "result"
        if native == QUESTION_TOOL and native in self._trust:
            return "answer"
        if self.cli_decides(native):
            return "permission" if self._ruled(native) else None
        trust = self._trust.get(native, False if self._of_server(native) else None)
        return "permission" if trust is False else None

    def cli_decides(self, native: str) -> bool:
        """Whether the CLI decides about the calls of a tool, unless a rule of the gateway does."""
        if self._mode is None or self.is_answer(native):
            return False
        return self.listed(native) and native not in self._app and not self._trust.get(native)

    def listed(self, native: str) -> bool:
        """Whether the session has the tool."""
        return native in self._app or native in self._trust or self._of_server(native) or self.is_answer(native)

    def _of_server(self, native: str) -> bool:
        """Whether it is a tool of the client's MCP servers. Such a tool needs no grant, and permission unless it is trusted."""
        return any(native.startswith(f"{MCP_PREFIX}{name}__") for name in self._servers)

    def client_name(self, native: str) -> str:
        """The tool's name for the client."""
        tool = self._app.get(native)
        return tool.name if tool else native

    def server_file(self) -> bytes | None:
        """The client's servers as a configuration file. It holds secrets, so only the user may read it."""
        if not self._servers:
            return None
        return json.dumps({"mcpServers": {name: server.as_json() for name, server in self._servers.items()}}).encode()

    def arguments(self, server_file: Path | None = None) -> list[str]:
        """The CLI's arguments that make these, and nothing else, its tools."""
        own = [name for name in self._trust if not name.startswith(MCP_PREFIX)]
        native_mode = NATIVE.get(self._mode, self._mode) if self._mode else "default"
        arguments = ["--tools", ",".join(own), "--strict-mcp-config", "--permission-mode", native_mode]
        configs = [json.dumps({"mcpServers": {SERVER: {"type": "sdk", "name": SERVER}}})] if self._app else []
        configs += [str(server_file)] if server_file else []
        return [*arguments, *(["--mcp-config", *configs] if configs else [])]

    def settings(self) -> dict[str, Any]:
        """The settings of the CLI by which these tools ask, for its argument `--settings`."""
        if self._mode is not None:
            return self._settings_for_hooks()
        asking = [name for name, trust in self._trust.items() if not trust] + [f"{MCP_PREFIX}{name}" for name in self._servers]
        # Beside the codec's hook, which comes first. No rule, mode or hook of the user's settings overrides it.
        return {"permissions": {"ask": asking}} if asking else {}

    def _settings_for_hooks(self) -> dict[str, Any]:
        """Settings without which the codec's hook, and with it the rules of the gateway, would not apply to all calls.

        With CLAUDE_CODE_SIMPLE, which a project's settings can set, the CLI calls no hooks (2.1.329). For commands inside a skill
        it never does.
        """
        settings: dict[str, Any] = {"env": {"CLAUDE_CODE_SIMPLE": ""}}
        if self._ruled("Bash"):
            settings["disableSkillShellExecution"] = True
        return settings

    def mcp_list(self) -> list[dict[str, Any]]:
        """The application's tools as MCP lists them."""
        return [_mcp_tool(native.removeprefix(PREFIX), tool) for native, tool in self._app.items()]

    def native_history(self, history: Iterable[Message]) -> list[Message]:
        """A history with the tools' native names."""
        return [self._native_message(message) for message in history]

    def _native_message(self, message: Message) -> Message:
        if not isinstance(message, AssistantMessage) or isinstance(message.content, str):
            return message
        named = [
            block.model_copy(update={"name": self._native.get(block.name, block.name)})
            if isinstance(block, ToolUseBlock)
            else block
            for block in message.content
        ]
        return message.model_copy(update={"content": tuple(named)})


def _mcp_tool(name: str, tool: ToolSpec) -> dict[str, Any]:
    return {
        "name": name,
        **({"title": tool.title} if tool.title else {}),
        "description": tool.description,
        # One schema without its type, and the CLI drops the whole list.
        "inputSchema": {**tool.input_schema, "type": "object"},
        # Else the CLI makes one call after the other, and the client sees each only when it has answered the one before.
        "annotations": {"readOnlyHint": True},
        "_meta": {"anthropic/maxResultSizeChars": LARGEST_RESULT},
    }


def _safe_names(tools: Iterable[ToolSpec]) -> list[str]:
    """Names that the model's API takes, each once: letters, digits, `_` and `-`, not too long."""
    names: list[str] = []
    for tool in tools:
        base = re.sub(r"[^A-Za-z0-9_-]", "_", tool.name)[: LONGEST_NAME - len(PREFIX)]
        name, n = base, 1
        while name in names:
            n += 1
            name = f"{base[: LONGEST_NAME - len(PREFIX) - len(str(n)) - 1]}_{n}"
        names.append(name)
    return names
