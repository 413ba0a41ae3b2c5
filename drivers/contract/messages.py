"""The conversation as data: messages and their content blocks.

Field names and roles are those of AAP's HistoryMessage (page "Schema"), the richest of the protocols; unknown fields are
kept, so that a history comes back exactly as it was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", serialize_by_alias=True, validate_by_name=True)


class TextBlock(_Shape):
    type: Literal["text"] = "text"
    text: str


class ThinkingBlock(_Shape):
    type: Literal["thinking"] = "thinking"
    thinking: str


class ToolUseBlock(_Shape):
    type: Literal["tool_use"] = "tool_use"
    tool_call_id: str = Field(alias="toolCallId")
    name: str
    input: dict[str, Any]


class ImageBlock(_Shape):
    """An image by `https://` address or as a `data:` URI (base64)."""

    type: Literal["image"] = "image"
    url: str


ContentBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ImageBlock, Field(discriminator="type")]
Content = str | tuple[ContentBlock, ...]


class SystemMessage(_Shape):
    role: Literal["system"] = "system"
    content: str


class UserMessage(_Shape):
    role: Literal["user"] = "user"
    content: Content


class AssistantMessage(_Shape):
    role: Literal["assistant"] = "assistant"
    content: Content


class ToolMessage(_Shape):
    """The result of one tool call, by its id."""

    role: Literal["tool"] = "tool"
    tool_call_id: str = Field(alias="toolCallId")
    content: Content


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
MESSAGE: TypeAdapter[Message] = TypeAdapter(Message)


_DATA_URI = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)


def data_uri(media_type: str, data: str) -> str:
    """A `data:` URI of base64 data."""
    return f"data:{media_type};base64,{data}"


def parse_data_uri(url: str) -> tuple[str, str] | None:
    """The media type and the base64 data of a `data:` URI; None for other addresses."""
    found = _DATA_URI.match(url)
    return (found[1], found[2]) if found else None


def blocks(content: Content) -> tuple[ContentBlock, ...]:
    """Content as blocks: a string is one text block, an empty one none."""
    if isinstance(content, str):
        return (TextBlock(text=content),) if content else ()
    return content


def text_of(content: Content) -> str:
    """The text of the content's text blocks, in order."""
    return "".join(block.text for block in blocks(content) if isinstance(block, TextBlock))


def pending_tool_calls(history: Iterable[Message]) -> dict[str, ToolUseBlock]:
    """The tool calls of the last assistant message that no later tool message answers, by id, in order."""
    pending: dict[str, ToolUseBlock] = {}
    for message in history:
        if isinstance(message, AssistantMessage):
            pending = {b.tool_call_id: b for b in blocks(message.content) if isinstance(b, ToolUseBlock)}
        elif isinstance(message, ToolMessage):
            pending.pop(message.tool_call_id, None)
    return pending
