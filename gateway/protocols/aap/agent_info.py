"""The response of `/meta` (AgentInfo of each agent), and the checks of a request against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from drivers.contract.driver_info import EFFORT_OPTION, Option
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
        "title": agent.title,
        "version": found.version or "0.0.0",
        "description": agent.settings.description or info.description,
        "tools": [tool.of(spec) for spec in info.tools],
        "options": [_option(option) for option in displayed_options(agent)],
        "capabilities": capabilities,
    }


def displayed_options(agent: ConfiguredAgent) -> list[Option]:
    """Return the options that a session may set, with the values that clients display.

    The options `model` and `effort` have as choices what the CLI lists. Other values are not rejected: CLIs accept more names.
    """
    listed = _listed(agent)
    return [_displayed(option, listed) for option in agent.settable_options]


def displayed_values(agent: ConfiguredAgent, options: Mapping[str, str]) -> dict[str, str]:
    """Return the values of options, with the name of the empty value where clients choose from a list."""
    names = _names_of_empty(agent)
    return {name: value or names.get(name, "") for name, value in options.items()}


def given_values(agent: ConfiguredAgent, options: Mapping[str, str]) -> dict[str, str]:
    """Return the values of options that a client has sent: the opposite of `displayed_values`."""
    names = _names_of_empty(agent)
    return {name: "" if value == names.get(name) else value for name, value in options.items()}


def _names_of_empty(agent: ConfiguredAgent) -> dict[str, str]:
    """Return the name of the empty value of each option whose choices include it."""
    listed = _listed(agent)
    choices = {option.name: _choices(option, listed) for option in agent.settable_options}
    return {name: _name_of_empty(values) for name, values in choices.items() if "" in values}


def _listed(agent: ConfiguredAgent) -> dict[str, tuple[str, ...]]:
    """Return the values that the CLI lists, by the options that they are for."""
    return {"model": agent.models, EFFORT_OPTION: agent.efforts}


def _choices(option: Option, listed: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    found = listed.get(option.name, ())
    if option.choices or not found:
        return option.choices
    return tuple(dict.fromkeys((option.default, *found)))


def _displayed(option: Option, listed: Mapping[str, tuple[str, ...]]) -> Option:
    choices = _choices(option, listed)
    if "" not in choices:
        return replace(option, choices=choices)
    name = _name_of_empty(choices)
    return replace(option, choices=tuple(choice or name for choice in choices), default=option.default or name)


def _name_of_empty(choices: tuple[str, ...]) -> str:
    return "CLI default" if "default" in choices else "default"


def _option(option: Option) -> dict[str, Any]:
    common = {"name": option.name, "title": option.title, "description": option.description}
    if option.secret:
        return {"type": "secret", **common, "default": HIDDEN if option.default else ""}
    if option.choices:
        return {"type": "select", **common, "options": list(option.choices), "default": option.default}
    return {"type": "text", **common, "default": option.default}
