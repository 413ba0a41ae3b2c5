"""Converts content between the gateway's messages and the Anthropic message format that claude reads and prints. No state."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from drivers.contract.messages import (
    AssistantMessage,
    Content,
    ContentBlock,
    ImageBlock,
    Message,
    TextBlock,
    ToolMessage,
    ToolUseBlock,
    UserMessage,
    data_uri,
    parse_data_uri,
)


def native_content(content: Content) -> str | list[dict[str, Any]]:
    """Message content as claude takes it: a string as it is, blocks as native blocks."""
    return content if isinstance(content, str) else [native for block in content if (native := _native_block(block))]


def _native_block(block: ContentBlock) -> dict[str, Any] | None:
    match block:
        case TextBlock():
            return {"type": "text", "text": block.text}
        case ToolUseBlock():
            return {"type": "tool_use", "id": block.tool_call_id, "name": block.name, "input": block.input}
        case ImageBlock():
            return {"type": "image", "source": _image_source(block.url)}
        case _:
            # A thinking block without the model's own signature is refused by the model's API.
            return None


def _image_source(url: str) -> dict[str, str]:
    if found := parse_data_uri(url):
        return {"type": "base64", "media_type": found[0], "data": found[1]}
    return {"type": "url", "url": url}


def output_of(native: Any) -> Any:
    """A native tool_result's content as a tool's output: text, or text and image blocks."""
    if not isinstance(native, list) or not all(isinstance(block, dict) for block in native):
        return native
    if all(block.get("type") == "text" for block in native):
        return "\n".join(str(block.get("text", "")) for block in native)
    return [_output_block(block) for block in native]


def _output_block(block: dict[str, Any]) -> dict[str, Any]:
    source = block.get("source")
    if block.get("type") == "image" and isinstance(source, dict):
        url = source.get("url") or data_uri(str(source.get("media_type")), str(source.get("data")))
        return {"type": "image", "url": url}
    if block.get("type") == "text":
        return {"type": "text", "text": str(block.get("text", ""))}
    return {"type": "text", "text": json.dumps(block)}


def native_messages(history: Iterable[Message]) -> list[dict[str, Any]]:
    """A history as native messages; tool results that follow each other are one user message, as the API requires."""
    native: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for message in history:
        if isinstance(message, ToolMessage):
            results.append(
                {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": native_content(message.content)}
            )
            continue
        if results:
            native.append({"role": "user", "content": results})
            results = []
        if isinstance(message, UserMessage | AssistantMessage):
            content = native_content(message.content)
            if content:
                native.append({"role": message.role, "content": content})
    if results:
        native.append({"role": "user", "content": results})
    return native
