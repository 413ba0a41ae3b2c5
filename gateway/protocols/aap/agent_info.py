"""The response of `/meta` (AgentInfo of each agent), and the checks of a request against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from drivers.contract.driver_info import Option
from gateway.agents.agent_descriptions import AgentDescription, listed_values
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.app import Gateway
from gateway.protocols.aap.schema import HistoryType, Tool, WireModel
from gateway.security.redaction import HIDDEN

Meta = TypeVar("Meta", bound=WireModel)


async def meta_response(gateway: Gateway, version: int, kind: type[Meta], tool: type[Tool]) -> Meta:
    """Return the response of `/meta` in the format of a version."""
    found = await gateway.offered_agents()
    return kind.model_validate({"version": version, "agents": [_agent_info(one, tool) for one in found]})


def declared_histories(agent: ConfiguredAgent) -> tuple[HistoryType, ...]:
    """Return the histories that can be requested."""
    return _histories(agent.info.capabilities.compaction)


def _histories(compaction: bool) -> tuple[HistoryType, ...]:
    return ("compacted", "full") if compaction else ("full",)


def _agent_info(agent: AgentDescription, tool: type[Tool]) -> dict[str, Any]:
    """Return the protocol's AgentInfo with the capabilities that the agent supports."""
    images: dict[str, Any] = {name: {} for name, takes in (("http", agent.image_http), ("data", agent.image_data)) if takes}
    capabilities = {
        "history": {kind: {} for kind in _histories(agent.compaction)},
        "stream": {"delta": {}, "message": {}, "none": {}},
        **({"application": {"tools": {}}} if agent.app_tools else {}),
        **({"image": images} if images else {}),
        # Extensions: docs/protocols/aap-extensions.md.
        "x-portico": {"cancel": {}, "events": {}, "queue": {}, **({"steer": {}} if agent.steers else {})},
    }
    return {
        "name": agent.name,
        "title": agent.title,
        "version": agent.version or "0.0.0",
        "description": agent.description,
        "tools": [tool.of(spec) for spec in agent.tools],
        "options": [_option(_displayed(option, agent.listed)) for option in agent.options],
        "capabilities": capabilities,
    }


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
    listed = listed_values(agent)
    choices = {option.name: _choices(option, listed) for option in agent.settable_options}
    return {name: _name_of_empty(values) for name, values in choices.items() if "" in values}


def _choices(option: Option, listed: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    found = listed.get(option.name, ())
    if option.choices or not found:
        return option.choices
    return tuple(dict.fromkeys((option.default, *found)))


def _displayed(option: Option, listed: Mapping[str, tuple[str, ...]]) -> Option:
    """Return an option with the values that clients display.

    The options `model` and `effort` have as choices what the CLI lists. Other values are not rejected: CLIs accept more names.
    """
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
