"""Converts a history to a chat file of the gemini CLI, which `session/load` then loads. Format of gemini 0.61.0. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from drivers.codecs.slash_commands import without_spaces
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
    parse_data_uri,
    text_of,
)
from drivers.contract.tool_denials import CANCELLED

OLD_TIME = "2000-01-01T00-00"
"""The time in a chat file's name. A load overwrites the session's file of the current minute: the CLI creates a file of that name
before it looks for the old one (measured with 0.61.0)."""

NEWEST_TIME = "2999-01-01T00:00:00.000Z"
"""The time of the last change in a chat file. A load creates a file of the same session and then reads the one that changed last:
up to 0.45.2 its own, without the conversation (measured with 0.44.0 and 0.45.2; 0.47.0 to 0.61.0 read the older file)."""
CHANGED_LAST = to_json({"$set": {"lastUpdated": NEWEST_TIME}}) + b"\n"
"""A line that gives a chat file this time."""

ZERO_WIDTH_SPACE = "\u200b"
"""Put before the text of a message that would be no text to the CLI, which trims any other space."""
NO_TEXT = ("/", "$", "?", "<session_context>", "<hook_context>")
"""A prompt that begins with `/` or `$` is a command. A load skips messages of the user that begin with any but `$` (0.61.0)."""


def chat_file_name(session_id: str) -> str:
    """The name of a session's chat file, which no new session uses."""
    return f"session-{OLD_TIME}-{session_id[:8]}.jsonl"


def chat_file(
    history: Iterable[Message],
    session_id: str,
    folder: str,
    ids: Sequence[str],
    timestamp: str,
    tool_names: Mapping[str, str] | None = None,
) -> bytes:
    """The chat file's content: a header line, then one message per line.

    ids: message ids, at least as many as messages.
    timestamp: the time of all messages, in ISO 8601.
    tool_names: the CLI's names of tools that have other names in the history.
    """
    header = {
        "sessionId": session_id,
        "projectHash": hashlib.sha256(folder.encode()).hexdigest(),
        "startTime": timestamp,
        "lastUpdated": NEWEST_TIME,
        "kind": "main",
    }
    records = [{**record, "id": ids[n], "timestamp": timestamp} for n, record in enumerate(records_of(history, tool_names))]
    return b"".join(to_json(line) + b"\n" for line in (header, *records))


def records_of(history: Iterable[Message], tool_names: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The messages in the CLI's format; a call and its result are in one record."""
    records: list[dict[str, Any]] = []
    pending: dict[str, dict[str, Any]] = {}
    for message in history:
        if isinstance(message, UserMessage):
            parts = _parts(message.content)
            texts = plain_texts([part.get("text", "") for part in parts])
            content = [{"text": text} if "text" in part else part for part, text in zip(parts, texts, strict=True)]
            records.append({"type": "user", "content": content})
        elif isinstance(message, AssistantMessage):
            used = [block for block in blocks(message.content) if isinstance(block, ToolUseBlock)]
            calls = [_call(block, (tool_names or {}).get(block.name, block.name)) for block in used]
            pending.update({call["id"]: call for call in calls})
            answer = [{"text": text}] if (text := text_of(message.content)) else []
            records.append({"type": "gemini", "content": answer, **({"toolCalls": calls} if calls else {})})
        elif isinstance(message, ToolMessage) and (call := pending.pop(message.tool_call_id, None)):
            call["result"] = _result(call, message.content)
    return records


def plain_texts(texts: Sequence[str]) -> list[str]:
    """The texts of one message of the user, of which the first begins so that the CLI takes the message for a text."""
    if not without_spaces("".join(texts)).startswith(NO_TEXT):
        return [*texts]
    first = next(n for n, text in enumerate(texts) if without_spaces(text))
    return [*texts[:first], ZERO_WIDTH_SPACE + texts[first], *texts[first + 1 :]]


def _call(block: ToolUseBlock, name: str) -> dict[str, Any]:
    call = {"id": block.tool_call_id, "name": name, "args": block.input, "status": "success"}
    return {**call, "result": _result(call, CANCELLED)}


def _result(call: dict[str, Any], content: Content) -> list[dict[str, Any]]:
    response = {"id": call["id"], "name": call["name"], "response": {"output": text_of(content)}}
    images = [part for part in _parts(content) if "inlineData" in part]
    return [{"functionResponse": response}, *images]


def _parts(content: Content) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in blocks(content):
        if isinstance(block, TextBlock):
            parts.append({"text": block.text})
        elif isinstance(block, ImageBlock):
            data = parse_data_uri(block.url)
            parts.append({"inlineData": {"mimeType": data[0], "data": data[1]}} if data else {"text": f"[image: {block.url}]"})
    return parts
