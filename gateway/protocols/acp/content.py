"""Content between the protocol's blocks and the gateway's messages, both ways; pure."""

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
from drivers.contract.info import DriverInfo
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
    """What the client says, as a message. Raises BadRequest for what the agent cannot take, or for nothing at all."""
    found = [_taken(block, info, f"prompt[{n}]") for n, block in enumerate(prompt)]
    if all(isinstance(block, TextBlock) and not block.text.strip() for block in found):
        raise BadRequest("prompt: it says nothing; write a text or add an image")
    if len(found) == 1 and isinstance(found[0], TextBlock):
        return UserMessage(content=found[0].text)
    return UserMessage(content=tuple(found))


def _taken(block: Block, info: DriverInfo, where: str) -> ContentBlock:
    match block:
        case TextContentBlock():
            return TextBlock(text=block.text)
        case ImageContentBlock():
            return _image(block.mime_type, block.data, info, where)
        case ResourceContentBlock():
            return TextBlock(text=_link(block.title or block.name, block.uri))
        case EmbeddedResourceContentBlock():
            return _resource(block, info, where)
        case AudioContentBlock():
            raise BadRequest(f"{where}: agents here take no audio; initialize says what this one takes")


def _image(mime_type: str, data: str, info: DriverInfo, where: str) -> ImageBlock:
    if not info.image_data:
        raise BadRequest(f"{where}: this agent takes no images; initialize says what it takes")
    return ImageBlock(url=data_uri(mime_type, data))


def _resource(block: EmbeddedResourceContentBlock, info: DriverInfo, where: str) -> ContentBlock:
    """A file that came along. It is named in front of its text, so that the model can tell it from what the user wrote."""
    resource = block.resource
    name = _link(resource.uri.rstrip("/").rpartition("/")[2] or resource.uri, resource.uri)
    if isinstance(resource, TextResourceContents):
        return TextBlock(text=f'{name}\n<context ref="{resource.uri}">\n{resource.text}\n</context>')
    if (resource.mime_type or "").startswith("image/"):
        return _image(resource.mime_type or "", resource.blob, info, where)
    return TextBlock(text=name)


def _link(name: str, uri: str) -> str:
    return f"[@{name}]({uri})"


def shown(content: Content) -> list[Any]:
    """Text and images of a message or a tool's output, as the client shows them."""
    return [_shown(block) for block in blocks(content) if isinstance(block, TextBlock | ImageBlock)]


def _shown(block: ContentBlock) -> Any:
    match block:
        case ImageBlock():
            if data := parse_data_uri(block.url):
                return ImageContentBlock(type="image", mime_type=data[0], data=data[1])
            return ResourceContentBlock(type="resource_link", name="image", uri=block.url)
        case TextBlock():
            return text(block.text)
        case ThinkingBlock() | ToolUseBlock():
            raise TypeError(f"{block.type} is shown in its own way")


def text(said: str) -> TextContentBlock:
    return TextContentBlock(type="text", text=said)
