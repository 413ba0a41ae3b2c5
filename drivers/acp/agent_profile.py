"""AgentProfile: what the driver of an ACP agent knows about its agent that the protocol does not transmit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from acp.schema import ToolCall, ToolCallUpdate

from drivers.acp.content import prompt_blocks
from drivers.acp.tool_calls import ToolCallState, default_input, default_name
from drivers.contract.agent import Prompt


def default_prompt(prompt: Prompt) -> list[Any]:
    """The prompt's content as ACP content blocks, unchanged."""
    return prompt_blocks(prompt.content)


def unchanged(update: ToolCall | ToolCallUpdate) -> ToolCall | ToolCallUpdate:
    """An update that is read as it is."""
    return update


def tool_of_meta(update: ToolCall | ToolCallUpdate) -> str | None:
    """The name of the tool in the `_meta` of an update, where the agent's program writes it; None if there is none.

    `claudeCode.toolName` is that of claude-agent-acp 0.101, `toolName` of qwen 0.24.4, `tool_name` of vibe 3.0.2. codex-acp 2.6
    marks a call of an MCP server, whose names are then in the input that its program writes.
    """
    meta, given = update.field_meta or {}, update.raw_input
    if meta.get("is_mcp_tool_call") is True and isinstance(given, dict):
        return f"mcp__{given.get('server')}__{given.get('tool')}"
    of_claude = meta.get("claudeCode")
    names = (of_claude.get("toolName") if isinstance(of_claude, dict) else None, meta.get("toolName"), meta.get("tool_name"))
    return next((name for name in names if isinstance(name, str)), None)


def any_command(name: str) -> bool:
    """Whether a prompt may be the command of this name: it may be any."""
    return True


@dataclass(frozen=True)
class AgentProfile:
    """How to read one agent's tool calls and how to write its prompts. The defaults fit any agent.

    title: the agent's name in error messages.
    tool_name: the name of the tool that a call belongs to; by default the call's ACP kind.
    tool_input: the input of a call; by default `rawInput`, else what the call displays.
    prompt: the ACP content blocks of a prompt.
    app_tools: the application-side tools, by the names that `reported_tool` returns.
    missing_file_is_empty: `fs/read_text_file` of a missing file returns an empty text instead of an error.
    slash_commands: a prompt can be a slash command, so the client is sent the list of them.
    is_command: whether a prompt may be the command of this name. Only those are listed.
    call_update: a call's update, or the call in a permission request, in the form that other agents give it.
    reported_tool: the name of the tool in such an update, where the agent's program writes it and never its model; None leaves
        the name that was reported before. An application-side tool of that name needs no permission.
    inputs_vary: the agent describes one call by different inputs, in its updates and its permission request: what it has
        reported before is kept, and the call is the same as long as its command line and files are.
    """

    title: str = "the agent"
    tool_name: Callable[[ToolCallState], str] = default_name
    tool_input: Callable[[ToolCallState], dict[str, Any]] = default_input
    prompt: Callable[[Prompt], list[Any]] = default_prompt
    app_tools: Mapping[str, str] = field(default_factory=dict)
    missing_file_is_empty: bool = False
    slash_commands: bool = True
    is_command: Callable[[str], bool] = any_command
    call_update: Callable[[ToolCall | ToolCallUpdate], ToolCall | ToolCallUpdate] = unchanged
    reported_tool: Callable[[ToolCall | ToolCallUpdate], str | None] = tool_of_meta
    inputs_vary: bool = False
