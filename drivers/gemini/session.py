"""What is gemini's own in an ACP session: the names and inputs of its calls, and prompts that are no commands; pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from acp.schema import FileEditToolCallContent, TextContentBlock

from drivers.acp.content import diff, output_of, prompt_blocks
from drivers.acp.profile import AgentProfile
from drivers.acp.tool_calls import Call, shown_input
from drivers.contract.agent import Prompt
from drivers.contract.info import ToolSpec
from drivers.contract.lines import parse_object
from drivers.gemini.tools import SHELL, app_name, name_of

MARK = "\u200b"
"""A space without width: before a `/` or `$`, with which a prompt would be a command to the CLI; it trims any other space."""


def tool_name(call: Call) -> str:
    return name_of(call.id, call.kind)


def tool_input(call: Call) -> dict[str, Any]:
    """The CLI does not tell its calls' input: what it shows of them has to do."""
    name = tool_name(call)
    edit = next((item for item in call.content if isinstance(item, FileEditToolCallContent)), None)
    if name == SHELL:
        return {"command": call.title}
    if edit is not None and name == "write_file":
        return {"file_path": edit.path, "content": edit.new_text}
    if edit is not None:
        return {"file_path": edit.path, "diff": diff(edit.path, edit.old_text or "", edit.new_text)}
    if name.startswith("mcp__") and call.status not in ("completed", "failed"):
        # Of a server's tool it shows the arguments, where they are not too long.
        return parse_object(str(output_of(call.content, {})).encode()) or shown_input(call)
    return shown_input(call)


def profile(*, verbatim: bool, app_tools: Iterable[ToolSpec] = ()) -> AgentProfile:
    names = {f"{app_name(tool.name)}__": tool.name for tool in app_tools}

    def app_tool(call: Call) -> str | None:
        return next((name for prefix, name in names.items() if call.id.startswith(prefix)), None)

    def prompt(given: Prompt) -> list[Any]:
        blocks = prompt_blocks(given.content)
        if verbatim and given.text.lstrip().startswith(("/", "$")):
            first = next(n for n, block in enumerate(blocks) if isinstance(block, TextContentBlock) and block.text.strip())
            blocks[first] = TextContentBlock(type="text", text=MARK + blocks[first].text)
        return blocks if verbatim else _command_first(blocks)

    # With an error for a file that is not there it could make none: it looks for words in an Error, and has an object (0.61.0).
    return AgentProfile(
        title="gemini",
        name=tool_name,
        given=tool_input,
        prompt=prompt,
        app_tool=app_tool,
        missing_is_empty=True,
        slash_commands=not verbatim,
    )


def _command_first(blocks: list[Any]) -> list[Any]:
    """The CLI takes all text at the beginning for one command line (0.61.0), so a command stands first and ends its line."""
    if len(blocks) < 2:
        return blocks
    commands = [block for block in (blocks[0], blocks[-1]) if isinstance(block, TextContentBlock) and block.text.startswith("/")]
    if not commands:
        return blocks
    command = commands[0]
    rest = [block for block in blocks if block is not command]
    return [TextContentBlock(type="text", text=command.text + "\n"), *rest]
