"""The AgentProfile of gemini's ACP sessions: tool names and inputs of its calls, and prompts that are not commands. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from acp.schema import FileEditToolCallContent, TextContentBlock, ToolCall, ToolCallUpdate

from drivers.acp import AgentProfile, ToolCallState, default_input, prompt_blocks, tool_output, unified_diff
from drivers.codecs.slash_commands import first_word, without_spaces
from drivers.contract.agent import Prompt
from drivers.contract.driver_info import ToolSpec
from drivers.contract.line_splitter import parse_object
from drivers.gemini.history import plain_texts
from drivers.gemini.tools import SHELL, app_tool_name, tool_of_call

COMMANDS = frozenset({"about", "help", "memory"})
"""The commands that only report. The others ask nobody (0.61.0): `/init` and `/restore` write files, and `/extensions` installs
programs, or waits for an answer on standard input, which the gateway does not have."""


def agent_profile(*, verbatim: bool, app_tools: Iterable[ToolSpec] = ()) -> AgentProfile:
    """The profile of one session. With `verbatim` a prompt that begins with `/` or `$` is text, else a command."""
    names = {app_tool_name(tool.name): tool.name for tool in app_tools}

    def reported_tool(update: ToolCall | ToolCallUpdate) -> str | None:
        return next((name for name in names if update.tool_call_id.startswith(f"{name}__")), None)

    def prompt(given: Prompt) -> list[Any]:
        blocks = prompt_blocks(given.content)
        ordered = blocks if verbatim else _command_first(blocks)
        name = _command_name(ordered)
        return ordered if name is not None and not verbatim and is_command(name) else _as_text(blocks)

    return AgentProfile(
        title="gemini",
        tool_name=_tool_name,
        tool_input=_tool_input,
        prompt=prompt,
        app_tools=names,
        reported_tool=reported_tool,
        # After an error for a missing file the CLI cannot create it: it searches the error's text, but has an object (0.61.0).
        missing_file_is_empty=True,
        slash_commands=not verbatim,
        is_command=is_command,
    )


def is_command(name: str) -> bool:
    """Whether a prompt may be the command of this name."""
    return name.partition(" ")[0] in COMMANDS


def _command_name(blocks: Iterable[Any]) -> str | None:
    """The name of the command that the CLI would run; None for a text. It reads all blocks of text as one (0.61.0)."""
    text = without_spaces("".join(block.text for block in blocks if isinstance(block, TextContentBlock)))
    return first_word(without_spaces(text[1:])) if text.startswith(("/", "$")) else None


def _as_text(blocks: list[Any]) -> list[Any]:
    """The blocks, whose first text begins so that it is no command, and is there again when the session is loaded."""
    texts = [block.text if isinstance(block, TextContentBlock) else "" for block in blocks]
    kept = plain_texts(texts)
    return [
        TextContentBlock(type="text", text=new) if new != old else block
        for block, old, new in zip(blocks, texts, kept, strict=True)
    ]


def _tool_name(call: ToolCallState) -> str:
    return tool_of_call(call.id, call.kind)


def _tool_input(call: ToolCallState) -> dict[str, Any]:
    """The input as far as the CLI displays it; it sends no `rawInput`, and the command in the title only (0.61.0)."""
    name = _tool_name(call)
    edit = next((item for item in call.content if isinstance(item, FileEditToolCallContent)), None)
    if name == SHELL:
        return {"command": call.title}
    if edit is not None and name == "write_file":
        # Of a file that exists the client displays the change.
        change = {"diff": unified_diff(edit.path, edit.old_text, edit.new_text)} if edit.old_text else {}
        return {"file_path": edit.path, "content": edit.new_text, **change}
    if edit is not None:
        return {"file_path": edit.path, "diff": unified_diff(edit.path, edit.old_text or "", edit.new_text)}
    if name.startswith("mcp__") and call.status not in ("completed", "failed"):
        # Of an MCP tool the CLI displays the arguments, if they are short.
        return parse_object(str(tool_output(call.content, {})).encode()) or default_input(call)
    return default_input(call)


def _command_first(blocks: list[Any]) -> list[Any]:
    """Moves a command to the front, on a line of its own: the CLI reads all leading text as one command line (0.61.0)."""
    if len(blocks) < 2:
        return blocks
    commands = [block for block in (blocks[0], blocks[-1]) if isinstance(block, TextContentBlock) and block.text.startswith("/")]
    if not commands:
        return blocks
    command = commands[0]
    rest = [block for block in blocks if block is not command]
    return [TextContentBlock(type="text", text=command.text + "\n"), *rest]
