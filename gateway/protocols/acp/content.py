"""Converts content between the protocol's blocks and the gateway's messages. Does no I/O.

Protocol page: https://agentclientprotocol.com/protocol/content
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from acp.schema import (
    AudioContentBlock,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
)

from drivers.acp.content import Block
from drivers.contract.driver_info import DriverInfo
from drivers.contract.messages import (
    Content,
    ContentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    UserMessage,
    blocks,
    data_uri,
    parse_data_uri,
)
from gateway.errors import BadRequest


def user_message(prompt: Sequence[Block], info: DriverInfo) -> UserMessage:
    """Return a prompt as a user message. Raises BadRequest for an empty prompt, and for content the agent does not support."""
    content = [_converted(block, info, f"prompt[{n}]") for n, block in enumerate(prompt)]
    if all(isinstance(block, TextBlock) and not block.text.strip() for block in content):
        raise BadRequest("prompt: is empty; add a text or an image")
    if len(content) == 1 and isinstance(content[0], TextBlock):
        return UserMessage(content=content[0].text)
    return UserMessage(content=tuple(content))


def _converted(block: Block, info: DriverInfo, path: str) -> ContentBlock:
    match block:
        case TextContentBlock():
            return TextBlock(text=block.text)
        case ImageContentBlock():
            return _image(block.mime_type, block.data, info, path)
        case ResourceContentBlock():
            return TextBlock(text=_link(block.title or block.name, block.uri))
        case EmbeddedResourceContentBlock():
            return _resource(block, info, path)
        case AudioContentBlock():
            raise BadRequest(f"{path}: audio is not supported; the answer to initialize declares what is")


def _image(mime_type: str, data: str, info: DriverInfo, path: str) -> ImageBlock:
    if not info.capabilities.image_data:
        raise BadRequest(f"{path}: this agent does not support images; the answer to initialize declares what it supports")
    return ImageBlock(url=data_uri(mime_type, data))


def _resource(block: EmbeddedResourceContentBlock, info: DriverInfo, path: str) -> ContentBlock:
    """Return an embedded file. Its name precedes its text, so that the model can distinguish it from the user's text."""
    resource = block.resource
    name = _link(resource.uri.rstrip("/").rpartition("/")[2] or resource.uri, resource.uri)
    if isinstance(resource, TextResourceContents):
        return TextBlock(text=f'{name}\n<context ref="{resource.uri}">\n{resource.text}\n</context>')
    if (resource.mime_type or "").startswith("image/"):
        return _image(resource.mime_type or "", resource.blob, info, path)
    return TextBlock(text=name)


def _link(name: str, uri: str) -> str:
    return f"[@{name}]({uri})"


def content_blocks(content: Content) -> list[Any]:
    """Return the text and the images of a message or of a tool's output as the protocol's content blocks."""
    return [_content_block(block) for block in blocks(content) if isinstance(block, TextBlock | ImageBlock)]


def _content_block(block: ContentBlock) -> Any:
    match block:
        case ImageBlock():
            if data := parse_data_uri(block.url):
                return ImageContentBlock(type="image", mime_type=data[0], data=data[1])
            return ResourceContentBlock(type="resource_link", name="image", uri=block.url)
        case TextBlock():
            return text(block.text)
        case ThinkingBlock() | ToolUseBlock():
            raise TypeError(f"a {block.type} block is no content block of the protocol")


def text(value: str) -> TextContentBlock:
    """Return a text block."""
    return TextContentBlock(type="text", text=value)
