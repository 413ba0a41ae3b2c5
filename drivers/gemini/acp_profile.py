"""The AgentProfile of gemini's ACP sessions: tool names and inputs of its calls, and prompts that are not commands. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from acp.schema import FileEditToolCallContent, TextContentBlock

from drivers.acp import AgentProfile, ToolCallState, default_input, prompt_blocks, tool_output, unified_diff
from drivers.contract.agent import Prompt
from drivers.contract.driver_info import ToolSpec
from drivers.contract.line_splitter import parse_object
from drivers.gemini.tools import SHELL, app_tool_name, tool_of_call

ZERO_WIDTH_SPACE = "\u200b"
"""Put before a `/` or `$` that would make a prompt a command of the CLI, which trims any other space."""


def agent_profile(*, verbatim: bool, app_tools: Iterable[ToolSpec] = ()) -> AgentProfile:
    """The profile of one session. With `verbatim` a prompt that begins with `/` or `$` is text, else a command."""
    prefixes = {f"{app_tool_name(tool.name)}__": tool.name for tool in app_tools}

    def app_tool(call: ToolCallState) -> str | None:
        return next((name for prefix, name in prefixes.items() if call.id.startswith(prefix)), None)

    def prompt(given: Prompt) -> list[Any]:
        blocks = prompt_blocks(given.content)
        if verbatim and given.text.lstrip().startswith(("/", "$")):
            first = next(n for n, block in enumerate(blocks) if isinstance(block, TextContentBlock) and block.text.strip())
            blocks[first] = TextContentBlock(type="text", text=ZERO_WIDTH_SPACE + blocks[first].text)
        return blocks if verbatim else _command_first(blocks)

    return AgentProfile(
        title="gemini",
        tool_name=_tool_name,
        tool_input=_tool_input,
        prompt=prompt,
        app_tool=app_tool,
        # After an error for a missing file the CLI cannot create it: it searches the error's text, but has an object (0.61.0).
        missing_file_is_empty=True,
        slash_commands=not verbatim,
    )


def _tool_name(call: ToolCallState) -> str:
    return tool_of_call(call.id, call.kind)


def _tool_input(call: ToolCallState) -> dict[str, Any]:
    """The input as far as the CLI displays it; it does not send `rawInput`."""
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
