"""Converts messages of the gateway to what codex takes: user input, results of application-side tools, seeds. No state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import to_json

from drivers.contract.messages import (
    AssistantMessage,
    Content,
    ImageBlock,
    Message,
    TextBlock,
    ToolMessage,
    ToolUseBlock,
    UserMessage,
    blocks,
)


def user_input(content: Content) -> list[dict[str, Any]]:
    """A prompt as `turn/start` takes it. Images go by `data:` address; the CLI refuses https (0.169.0)."""
    parts: list[dict[str, Any]] = []
    for block in blocks(content):
        if isinstance(block, TextBlock):
            parts.append({"type": "text", "text": block.text, "text_elements": []})
        elif isinstance(block, ImageBlock):
            parts.append({"type": "image", "url": block.url})
    return parts or [{"type": "text", "text": "", "text_elements": []}]


def tool_output(content: Content) -> list[dict[str, Any]]:
    """A client's tool result as the content items of an `item/tool/call` answer."""
    parts: list[dict[str, Any]] = []
    for block in blocks(content):
        if isinstance(block, TextBlock):
            parts.append({"type": "inputText", "text": block.text})
        elif isinstance(block, ImageBlock):
            parts.append({"type": "inputImage", "imageUrl": block.url})
    return parts or [{"type": "inputText", "text": ""}]


def seed_items(history: Iterable[Message], names: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """A history as Responses items. Reasoning is left out: without the model's own signature it is refused.

    `names` are those of application-side tools for the CLI.
    """
    items: list[dict[str, Any]] = []
    for message in history:
        if isinstance(message, UserMessage):
            items += _message("user", message.content, "input_text")
        elif isinstance(message, AssistantMessage):
            items += _message("assistant", message.content, "output_text")
            calls = [block for block in blocks(message.content) if isinstance(block, ToolUseBlock)]
            items += [_function_call(block, (names or {}).get(block.name, block.name)) for block in calls]
        elif isinstance(message, ToolMessage):
            items.append({"type": "function_call_output", "call_id": message.tool_call_id, "output": _output(message.content)})
    return items


def _message(role: str, content: Content, text_type: str) -> list[dict[str, Any]]:
    parts = _parts(content, text_type)
    return [{"type": "message", "role": role, "content": parts}] if parts else []


def _parts(content: Content, text_type: str) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in blocks(content):
        if isinstance(block, TextBlock) and block.text:
            parts.append({"type": text_type, "text": block.text})
        elif isinstance(block, ImageBlock) and text_type == "input_text":
            parts.append({"type": "input_image", "image_url": block.url})
    return parts


def _function_call(block: ToolUseBlock, name: str) -> dict[str, Any]:
    arguments = to_json(block.input).decode()
    return {"type": "function_call", "call_id": block.tool_call_id, "name": name, "arguments": arguments}


def _output(content: Content) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    return _parts(content, "input_text")
