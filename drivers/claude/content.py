"""Converts content between the gateway's messages and the Anthropic message format that claude reads and prints. No state."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_core import to_json

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

LONGEST_FOLDER = 200
DIGITS36 = "0123456789abcdefghijklmnopqrstuvwxyz"


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


def session_file(history: Sequence[Message], ids: Sequence[str], timestamp: str) -> bytes:
    """The CLI's own session file for a history: one line a message, each naming the one before.

    `timestamp` and the chain of `parentUuid` are needed: claude 2.1.329 ignores files without the one, records without
    the other. `ids` are as many fresh UUIDs as there are messages, or more.
    """
    lines: list[bytes] = []
    parent: str | None = None
    for message, uuid in zip(native_messages(history), ids, strict=False):
        if message["role"] == "assistant" and isinstance(message["content"], str):
            message = {**message, "content": [{"type": "text", "text": message["content"]}]}
        lines.append(
            to_json({"type": message["role"], "message": message, "uuid": uuid, "parentUuid": parent, "timestamp": timestamp})
        )
        parent = uuid
    return b"\n".join(lines) + b"\n"


def project_folder(cwd: str) -> str:
    """The CLI's folder name for the sessions of a working folder (its real path): what is not a letter or digit is `-`.

    A long name is cut, and the hash of the path put behind it (measured with claude 2.1.329).
    """
    name = "".join(c if c.isascii() and c.isalnum() else "-" * (len(c.encode("utf-16-le")) // 2) for c in cwd)
    return name if len(name) <= LONGEST_FOLDER else f"{name[:LONGEST_FOLDER]}-{_hash36(cwd)}"


def _hash36(text: str) -> str:
    """JavaScript's usual 31-fold string hash over UTF-16 units, as 32 signed bits, its amount in base 36."""
    units, value = text.encode("utf-16-le"), 0
    for low, high in zip(units[::2], units[1::2], strict=True):
        value = (value * 31 + low + 256 * high) & 0xFFFFFFFF
    rest, digits = min(value, 2**32 - value), ""
    while rest:
        rest, digit = divmod(rest, 36)
        digits = DIGITS36[digit] + digits
    return digits or "0"
