"""Digests of the messages of a conversation, by which a request is found to continue one. Pure.

Clients do not send an answer back exactly as they have received it: some change white space, some leave the reasoning out, some
divide one answer into several messages. So a digest is of what the model has read or written: text, images, calls and results.
White space in the text of an answer does not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from pydantic_core import to_json

from drivers.contract.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    ToolMessage,
    ToolUseBlock,
    text_of,
)

Digest = bytes


def message_digests(messages: Iterable[Message]) -> tuple[Digest, ...]:
    """Return the digests of a conversation, in order: one for each message, and one for assistant messages in a row.

    Messages without text, images and calls are left out.
    """
    found: list[Digest] = []
    for role, group in groupby(messages, key=lambda message: message.role):
        together = list(group)
        parts = [_parts(together)] if role == "assistant" else [_parts([message]) for message in together]
        found += [hashlib.sha256(to_json([role, *part])).digest() for part in parts if part]
    return tuple(found)


def conversation_digest(scope: Sequence[str], digests: Iterable[Digest]) -> Digest:
    """Return one digest of a whole conversation. `scope` is what two conversations must have in common to be the same."""
    return hashlib.sha256(to_json(list(scope)) + b"".join(digests)).digest()


def _parts(messages: Sequence[Message]) -> list[Any]:
    """What the model has read or written in these messages; empty if that is nothing."""
    text = "".join(_counted_text(message) for message in messages)
    found: list[Any] = [text] if text else []
    for message in messages:
        if isinstance(message, ToolMessage):
            found.append({"result_of": message.tool_call_id})
        if isinstance(message.content, str):
            # Not by `blocks`, which takes as long as all the rest: each request has all messages of its conversation.
            continue
        for block in message.content:
            if isinstance(block, ImageBlock):
                found.append({"image": hashlib.sha256(block.url.encode()).hexdigest()})
            elif isinstance(block, ToolUseBlock) and isinstance(message, AssistantMessage):
                found.append({"call": block.tool_call_id, "name": block.name, "input": _sorted(block.input)})
    return found


def _counted_text(message: Message) -> str:
    text = message.content if isinstance(message.content, str) else text_of(message.content)
    return "".join(text.split()) if isinstance(message, AssistantMessage) else text.strip()


def _sorted(value: Any) -> Any:
    """The same JSON value with the members of its objects in order: clients parse the arguments of a call and write them anew."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
