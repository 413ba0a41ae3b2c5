"""The response of `/meta` (AgentInfo of each agent), and the checks of a request against it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from drivers.contract.driver_info import Option
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.agents.discovery import DiscoveredAgent
from gateway.gateway import Gateway
from gateway.protocols.aap.schema import HistoryType, Tool, WireModel
from gateway.security.redaction import HIDDEN

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
        "options": [_option(_with_models(option, found.probe.models)) for option in agent.settable_options],
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
