"""Checks the messages of a request against its agent: prompt, history, images. Raises BadRequest with the field that is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from drivers.contract.messages import ImageBlock, Message, SystemMessage, ToolMessage, UserMessage, blocks, text_of
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.errors import BadRequest


def check_messages(agent: ConfiguredAgent, messages: Iterable[Message]) -> None:
    """Raise BadRequest for images that the agent does not accept."""
    for message in messages:
        if isinstance(message, SystemMessage):
            continue
        for block in blocks(message.content):
            if isinstance(block, ImageBlock) and isinstance(message, UserMessage | ToolMessage):
                _check_image(agent, block.url)


def _check_image(agent: ConfiguredAgent, url: str) -> None:
    kind = url.partition(":")[0].lower()
    takes: Mapping[str, bool] = {"data": agent.info.capabilities.image_data, "https": agent.info.capabilities.image_http}
    if kind not in takes:
        raise BadRequest("an image's url must start with https:// or data:")
    if not takes[kind]:
        raise BadRequest(f"agent {agent.name!r} takes no images by {kind}: address; /meta lists what it takes")


def check_new(agent: ConfiguredAgent, messages: Sequence[Message]) -> UserMessage:
    """The message that a new session begins with: the last one. Raises BadRequest unless these can start a session that answers
    at once."""
    if not messages or not isinstance(messages[-1], UserMessage):
        raise BadRequest("messages: the last message must be a user message, which the agent then answers")
    check_prompt(messages[-1])
    check_seed(agent, messages[:-1])
    check_messages(agent, messages[-1:])
    return messages[-1]


def check_seed(agent: ConfiguredAgent, messages: Sequence[Message]) -> None:
    """Raises BadRequest unless the agent can be given these as a history."""
    if not agent.info.capabilities.system and any(isinstance(message, SystemMessage) for message in messages):
        raise BadRequest(f"messages: agent {agent.name!r} takes no system message; leave it out")
    if not agent.info.capabilities.seeds and any(not isinstance(message, SystemMessage) for message in messages):
        raise BadRequest(f"messages: agent {agent.name!r} cannot be given a history; begin the session with one user message")
    check_messages(agent, messages)


def check_prompt(message: UserMessage) -> None:
    """Raises BadRequest for a message without text and images: no CLI takes one."""
    images = any(isinstance(block, ImageBlock) for block in blocks(message.content))
    if not images and not text_of(message.content).strip():
        raise BadRequest("messages: the user message is blank; write a text or add an image")
