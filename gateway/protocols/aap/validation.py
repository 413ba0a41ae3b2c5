"""Checks a request against its agent: settings, tools, history, images. Raises BadRequest with the field that is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from drivers.contract.driver_info import ToolGrant, ToolSpec
from drivers.contract.messages import ImageBlock, Message, SystemMessage, ToolMessage, UserMessage, blocks, text_of
from gateway.agents.configured import ConfiguredAgent
from gateway.errors import BadRequest
from gateway.protocols.aap.schema import (
    AgentOverrides,
    Tool,
)
from gateway.security.redaction import HIDDEN
from gateway.sessions.settings import SessionSettings


def merge_settings(
    config: SessionSettings, agent: ConfiguredAgent, overrides: AgentOverrides | None, tools: Iterable[Tool] | None
) -> SessionSettings:
    """Return a session's settings with those of a request: options merge by key, tool lists replace. Raises BadRequest."""
    given = dict(overrides.options or {}) if overrides else {}
    hidden = {option.name for option in agent.options if option.secret}
    # Responses contain `***` for secrets; a client that sends it back has not changed them.
    given = {name: value for name, value in given.items() if not (name in hidden and value == HIDDEN)}
    agent.check_options(given)
    options = {**config.options, **{n: v for n, v in given.items() if n not in hidden}}
    secrets = {**config.secrets, **{n: v for n, v in given.items() if n in hidden}}
    grants = config.tools
    if overrides and overrides.tools is not None:
        grants = tuple(ToolGrant(tool.name, tool.trust) for tool in overrides.tools)
    app_tools = config.app_tools
    if tools is not None:
        app_tools = tuple(ToolSpec(tool.name, tool.description, tool.input_schema, tool.title) for tool in tools)
    _check_tools(agent, grants or (), app_tools or ())
    return replace(config, options=options, secrets=secrets, tools=grants, app_tools=app_tools)


def _check_tools(agent: ConfiguredAgent, grants: Iterable[ToolGrant], app_tools: Iterable[ToolSpec]) -> None:
    exposed = {tool.name for tool in agent.info.tools}
    for grant in grants:
        if grant.name not in exposed:
            known = f"its tools are {', '.join(sorted(exposed))}" if exposed else "it has none"
            raise BadRequest(f"agent.tools: agent {agent.name!r} has no tool {grant.name!r}; {known}")
    seen: set[str] = set()
    for tool in app_tools:
        if not agent.info.app_tools:
            raise BadRequest(f"tools: agent {agent.name!r} takes no application-side tools; leave {tool.name!r} out")
        if tool.name in exposed or tool.name in seen:
            raise BadRequest(f"tools: the name {tool.name!r} is taken by another tool; tool names must be unique in a request")
        seen.add(tool.name)


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
    takes: Mapping[str, bool] = {"data": agent.info.image_data, "https": agent.info.image_http}
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
    if not agent.info.system and any(isinstance(message, SystemMessage) for message in messages):
        raise BadRequest(f"messages: agent {agent.name!r} takes no system message; leave it out")
    if not agent.info.seeds and any(not isinstance(message, SystemMessage) for message in messages):
        raise BadRequest(f"messages: agent {agent.name!r} cannot be given a history; begin with one user message, in a turn")
    check_messages(agent, messages)


def check_prompt(message: UserMessage) -> None:
    """Raises BadRequest for a message without text and images: no CLI takes one."""
    images = any(isinstance(block, ImageBlock) for block in blocks(message.content))
    if not images and not text_of(message.content).strip():
        raise BadRequest("messages: the user message is blank; write a text or add an image")
