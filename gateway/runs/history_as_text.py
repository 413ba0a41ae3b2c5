"""A history as a part of the first prompt, for agents that cannot be given one in any other way. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pydantic_core import to_json

from drivers.contract.agent import Prompt
from drivers.contract.messages import (
    ContentBlock,
    ImageBlock,
    Message,
    TextBlock,
    ToolMessage,
    ToolUseBlock,
    blocks,
)

MAX_CHARACTERS = 200_000
"""Characters of a history, about 50,000 tokens. The newest messages count."""
_HEAD = "This conversation has begun before, and you do not know it yet. These are its messages so far, one a line, as JSON."


def with_history(prompt: Prompt, history: Sequence[Message]) -> Prompt:
    """Return the prompt with the history before it. As JSON no message can pretend to be of somebody else."""
    lines: list[str] = []
    room = MAX_CHARACTERS
    for message in reversed(history):
        line = to_json(_described(message)).decode()
        if len(line) > room and lines:
            break
        lines.append(line[:room])
        room -= len(lines[-1])
    left_out = f" {len(history) - len(lines)} older ones are left out." if len(lines) < len(history) else ""
    new = () if prompt.go_on else blocks(prompt.content)
    follows = " The new message follows." if new else ""
    text = "\n".join([f"{_HEAD}{left_out} Go on with it.{follows}", "", *reversed(lines), "", ""])
    return replace(prompt, content=(TextBlock(text=text), *new), go_on=False)


def _described(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role}
    if isinstance(message, ToolMessage):
        found["result_of"] = message.tool_call_id
    if text := "".join(_texts(blocks(message.content))):
        found["text"] = text
    calls = [
        {"id": block.tool_call_id, "name": block.name, "input": block.input}
        for block in blocks(message.content)
        if isinstance(block, ToolUseBlock)
    ]
    return {**found, "tool_calls": calls} if calls else found


def _texts(content: Sequence[ContentBlock]) -> Iterator[str]:
    """Yield the text of a message. What the model has thought is left out: only its own CLI takes that."""
    for block in content:
        if isinstance(block, TextBlock):
            yield block.text
        elif isinstance(block, ImageBlock):
            yield "[an image]"
