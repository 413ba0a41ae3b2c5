"""Session modes, which are levels of permission, and the agent's options as config options. Does no I/O.

Protocol pages: https://agentclientprotocol.com/protocol/session-modes and session-config-options beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from acp.schema import SessionConfigOptionSelect, SessionConfigSelectOption, SessionMode, SessionModeState

from drivers.contract.driver_info import DriverInfo, Option, ToolGrant
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.errors import BadRequest
from gateway.sessions.settings import SessionSettings

MODES = (
    SessionMode(id="ask", name="Ask", description="Asks before each of the agent's tools runs."),
    SessionMode(id="edit", name="Edit", description="Reads, searches and edits files without asking; asks before all else."),
    SessionMode(id="auto", name="Auto", description="Runs all of the agent's tools without asking."),
)
TRUSTED_KINDS: Mapping[str, frozenset[str] | None] = {
    "ask": frozenset(),
    "edit": frozenset({"read", "search", "edit", "think"}),
    "auto": None,
}
"""The kinds of tools that run without asking in each mode. None means all of them."""
MODE_OPTION = "permissions"
"""Id of the config option that sets the mode."""
DEFAULT = "default"
"""The value that stands for an option's empty value, which is the CLI's own default."""


def all_tools(agent: ConfiguredAgent) -> tuple[ToolGrant, ...]:
    """Return all tools of the agent, none of them trusted: an ACP client expects that they are enabled and need permission."""
    return tuple(ToolGrant(tool.name) for tool in agent.info.tools)


def modes(info: DriverInfo, config: SessionSettings) -> SessionModeState | None:
    """Return the modes and the current one, or None for a session without tools."""
    if not config.tools:
        return None
    return SessionModeState(current_mode_id=mode_of(info, config), available_modes=list(MODES))


def mode_of(info: DriverInfo, config: SessionSettings) -> str:
    """Return the id of the most permissive mode whose tools are all trusted."""
    tools = config.tools or ()
    if tools and all(grant.trust for grant in tools):
        return "auto"
    edits = [grant for grant in tools if _is_trusted(info, "edit", grant.name)]
    return "edit" if edits and all(grant.trust for grant in edits) else "ask"


def with_mode(info: DriverInfo, config: SessionSettings, mode_id: str) -> SessionSettings:
    """Return the settings with the tools of that mode trusted, and only those. Raises BadRequest for an unknown mode."""
    if mode_id not in TRUSTED_KINDS:
        raise BadRequest(f"modeId: unknown mode {mode_id!r}; known are {', '.join(TRUSTED_KINDS)}")
    return replace(
        config, tools=tuple(ToolGrant(grant.name, _is_trusted(info, mode_id, grant.name)) for grant in config.tools or ())
    )


def _is_trusted(info: DriverInfo, mode_id: str, tool: str) -> bool:
    kinds = TRUSTED_KINDS[mode_id]
    return kinds is None or info.tool_kind(tool) in kinds


def config_options(agent: ConfiguredAgent, config: SessionSettings, models: Iterable[str]) -> list[Any]:
    """Return all config options: the mode, the model, and the agent's other options that are choices.

    `models` are the models that the agent's CLI lists.
    """
    mode = [_mode_option(agent.info, config)] if config.tools else []
    choices = [option for option in _choices(agent, tuple(models)) if not option.secret]
    return mode + [_select(option, config.options.get(option.name, option.default)) for option in choices]


def commands_enabled(agent: ConfiguredAgent, config: SessionSettings) -> bool:
    """Whether a prompt that begins with `/` is a slash command in this session, and not text."""
    name = agent.info.slash_option
    default = next((option.default for option in agent.options if option.name == name), "")
    return name is None or config.options.get(name, default) == "on"


def _choices(agent: ConfiguredAgent, models: tuple[str, ...]) -> list[Option]:
    """Return the options that are choices. The model's choices are those that the CLI lists, if it lists any."""
    options = [replace(o, choices=models) if o.name == "model" and not o.choices else o for o in agent.settable_options]
    return [
        replace(o, choices=("", *o.choices)) if o.name == "model" and "" not in o.choices and DEFAULT not in o.choices else o
        for o in options
        if o.choices
    ]


def _mode_option(info: DriverInfo, config: SessionSettings) -> SessionConfigOptionSelect:
    return SessionConfigOptionSelect(
        type="select",
        id=MODE_OPTION,
        name="Permissions",
        description="What the agent does without asking.",
        category="mode",
        current_value=mode_of(info, config),
        options=[SessionConfigSelectOption(value=mode.id, name=mode.name, description=mode.description) for mode in MODES],
    )


def _select(option: Option, value: str) -> SessionConfigOptionSelect:
    # The current value may not be listed: an alias, or a new model.
    values = dict.fromkeys([*option.choices, value])
    return SessionConfigOptionSelect(
        type="select",
        id=option.name,
        name=option.title,
        description=option.description,
        category="model" if option.name == "model" else None,
        current_value=value or DEFAULT,
        options=[
            SessionConfigSelectOption(value=v or DEFAULT, name=v or "Default") for v in values if v or DEFAULT not in values
        ],
    )


def with_option(agent: ConfiguredAgent, config: SessionSettings, name: str, value: str, models: Iterable[str]) -> SessionSettings:
    """Return the settings with a config option set.

    Raises BadRequest for an unknown option or value, and Forbidden for a locked option.
    """
    if name == MODE_OPTION:
        return with_mode(agent.info, config, value)
    if name in agent.locked:
        agent.check_locked({name: value})
    known = {option.id: option for option in config_options(agent, config, models)}
    if name not in known:
        raise BadRequest(f"configId: unknown option {name!r}; known are {', '.join(sorted(known)) or 'none'}")
    values = [choice.value for choice in known[name].options]
    if value not in values:
        raise BadRequest(f"value: option {name!r} cannot be {value!r}; choose one of {', '.join(values)}")
    option = next(option for option in agent.options if option.name == name)
    plain = "" if value == DEFAULT and DEFAULT not in option.choices and DEFAULT not in models else value
    agent.check_options({name: plain}, config.workspace_key)
    return replace(config, options={**config.options, name: plain})
