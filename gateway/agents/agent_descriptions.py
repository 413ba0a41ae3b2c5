"""Descriptions of agents, from which a client creates sessions. The nodes of a cluster exchange them as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import ConfigDict, TypeAdapter

from drivers.contract.driver_info import EFFORT_OPTION, Option, ToolSpec
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.agents.discovery import DiscoveredAgent
from gateway.security.redaction import HIDDEN


@dataclass(frozen=True, slots=True)
class AgentDescription:
    """Description of an agent that can be used.

    `options` are the options that a session may set; the default of a secret option is HIDDEN if it has one. `listed` has the
    values that the CLI lists for an option, by its name. `model_names` has the names of models for people, by their values.
    """

    name: str
    title: str
    version: str | None
    description: str
    tools: tuple[ToolSpec, ...]
    options: tuple[Option, ...]
    listed: Mapping[str, tuple[str, ...]]
    model_names: Mapping[str, str]
    locked_model: bool
    compaction: bool
    app_tools: bool
    image_http: bool
    image_data: bool
    steers: bool


# Built at its first use, which only nodes of a cluster have.
_DESCRIPTIONS = TypeAdapter(list[AgentDescription], config=ConfigDict(defer_build=True))


def describe(found: DiscoveredAgent) -> AgentDescription:
    """Return the description of an agent of this gateway."""
    agent, info = found.agent, found.agent.info
    return AgentDescription(
        name=agent.name,
        title=agent.title,
        version=found.version,
        description=agent.settings.description or info.description,
        tools=info.tools,
        options=tuple(_without_secret(option) for option in agent.settable_options),
        listed=listed_values(agent),
        model_names={value: model.name for value, model in agent.model_names.items()},
        locked_model="model" in agent.locked,
        compaction=info.capabilities.compaction,
        app_tools=info.capabilities.app_tools,
        image_http=info.capabilities.image_http,
        image_data=info.capabilities.image_data,
        steers=info.capabilities.steers,
    )


def listed_values(agent: ConfiguredAgent) -> Mapping[str, tuple[str, ...]]:
    """Return the values that the CLI lists, by the options that they are for."""
    return {"model": agent.models, EFFORT_OPTION: agent.efforts}


def to_json(descriptions: Sequence[AgentDescription]) -> str:
    """Return descriptions as JSON."""
    return _DESCRIPTIONS.dump_json(list(descriptions)).decode()


def from_json(text: str) -> list[AgentDescription]:
    """Return the descriptions of a text that `to_json` has returned."""
    return _DESCRIPTIONS.validate_json(text)


def _without_secret(option: Option) -> Option:
    return replace(option, default=HIDDEN if option.default else "") if option.secret else option
