"""The response of `/meta` (AgentInfo of each agent), and the checks of a request against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from drivers.contract.info import Option, ToolGrant, ToolSpec
from drivers.contract.messages import ImageBlock, Message, SystemMessage, ToolMessage, UserMessage, blocks
from gateway.agents.configured import ConfiguredAgent
from gateway.agents.discovery import DiscoveredAgent
from gateway.errors import BadRequest
from gateway.gateway import Gateway
from gateway.protocols.aap.schema import AgentOverrides, HistoryType, Tool, WireModel
from gateway.security.redaction import HIDDEN
from gateway.sessions.settings import SessionSettings

Meta = TypeVar("Meta", bound=WireModel)


async def meta_response(gateway: Gateway, version: int, kind: type[Meta], tool: type[Tool]) -> Meta:
    """Return the response of `/meta` in the format of a version."""
    found = await gateway.discovery.available()
    return kind.model_validate({"version": version, "agents": [_agent_info(one, tool) for one in found]})


def declared_histories(agent: ConfiguredAgent) -> tuple[HistoryType, ...]:
    """Return the histories that can be requested."""
    return ("compacted", "full") if agent.info.compaction else ("full",)


def _agent_info(found: DiscoveredAgent, tool: type[Tool]) -> dict[str, Any]:
    """Return the protocol's AgentInfo with the capabilities that the agent supports."""
    agent, info = found.agent, found.agent.info
    images: dict[str, Any] = {name: {} for name, takes in (("http", info.image_http), ("data", info.image_data)) if takes}
    capabilities = {
        "history": {kind: {} for kind in declared_histories(agent)},
        "stream": {"delta": {}, "message": {}, "none": {}},
        **({"application": {"tools": {}}} if info.app_tools else {}),
        **({"image": images} if images else {}),
        # Extensions: docs/protocols/aap-extensions.md.
        "x-portico": {"cancel": {}, "events": {}, "queue": {}, **({"steer": {}} if info.steers else {})},
    }
    return {
        "name": agent.name,
        "title": agent.settings.title or info.title,
        "version": found.version,
        "description": agent.settings.description or info.description,
        "tools": [tool.of(spec) for spec in info.tools],
        "options": [_option(_with_models(option, found.probe.models)) for option in agent.options],
        "capabilities": capabilities,
    }


def _with_models(option: Option, models: tuple[str, ...]) -> Option:
    """Return the option `model` with the models that the CLI lists. Other values are not rejected: CLIs accept more names."""
    if option.name != "model" or option.choices or not models:
        return option
    return replace(option, choices=tuple(dict.fromkeys((option.default, *models))))


def _option(option: Option) -> dict[str, Any]:
    common = {"name": option.name, "title": option.title, "description": option.description}
    if option.secret:
        return {"type": "secret", **common, "default": HIDDEN if option.default else ""}
    if option.choices:
        return {"type": "select", **common, "options": list(option.choices), "default": option.default}
    return {"type": "text", **common, "default": option.default}


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
