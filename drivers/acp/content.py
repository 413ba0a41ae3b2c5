"""Translates content between the gateway's messages and the Agent Client Protocol's blocks. No I/O."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from acp.schema import (
    AudioContentBlock,
    ContentToolCallContent,
    EmbeddedResourceContentBlock,
    FileEditToolCallContent,
    ImageContentBlock,
    ResourceContentBlock,
    TerminalToolCallContent,
    TextContentBlock,
    TextResourceContents,
)

from drivers.contract.messages import Content, ImageBlock, TextBlock, blocks, data_uri, parse_data_uri

Block = TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock
ToolContent = ContentToolCallContent | FileEditToolCallContent | TerminalToolCallContent

MAX_DIFF = 200_000
"""Characters of both versions up to which an edit is rendered as a diff; comparing longer ones takes too long."""


def prompt_blocks(content: Content) -> list[Any]:
    """A user's message as ACP content blocks. Images that are not `data:` URIs are omitted."""
    found: list[Any] = []
    for block in blocks(content):
        if isinstance(block, TextBlock):
            found.append(TextContentBlock(type="text", text=block.text))
        elif isinstance(block, ImageBlock) and (data := parse_data_uri(block.url)):
            found.append(ImageContentBlock(type="image", mime_type=data[0], data=data[1]))
    return found


def has_image(content: Content) -> bool:
    return any(isinstance(block, ImageBlock) for block in blocks(content))


def text_of_block(block: Block) -> str:
    """A block as text; other blocks are represented by their name or type."""
    match block:
        case TextContentBlock():
            return block.text
        case ResourceContentBlock():
            return f"[{block.name}]({block.uri})"
        case EmbeddedResourceContentBlock():
            resource = block.resource
            return resource.text if isinstance(resource, TextResourceContents) else f"[{resource.uri}]"
        case _:
            return f"[{block.type}: {block.mime_type}]"


def tool_output(content: Sequence[ToolContent], terminals: dict[str, str]) -> Any:
    """A tool call's content as its output: text, or blocks where there are images. `terminals` maps ids to their last output."""
    parts = [_part(item, terminals) for item in content]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(item: ToolContent, terminals: dict[str, str]) -> dict[str, str]:
    match item:
        case FileEditToolCallContent():
            return {"type": "text", "text": unified_diff(item.path, item.old_text or "", item.new_text)}
        case TerminalToolCallContent():
            return {"type": "text", "text": terminals.get(item.terminal_id, "")}
        case _:
            block = item.content
            if isinstance(block, ImageContentBlock):
                return {"type": "image", "url": data_uri(block.mime_type, block.data)}
            return {"type": "text", "text": text_of_block(block)}


def unified_diff(path: str, old: str, new: str) -> str:
    """An edit in the format of `diff -u`; beyond MAX_DIFF characters, the lengths only."""
    if len(old) + len(new) > MAX_DIFF:
        return f"{path}: {len(old)} characters became {len(new)}"
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), path, path, lineterm="")
    return "\n".join(lines)
