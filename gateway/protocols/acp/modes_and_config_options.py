"""Session modes, which are levels of permission, and the agent's options as config options. Does no I/O.

An agent has its CLI's own modes, in which the CLI decides what it asks about, and the gateway's, which trust tools by kind.

Protocol pages: https://agentclientprotocol.com/protocol/session-modes and session-config-options beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from acp.schema import SessionConfigOptionSelect, SessionConfigSelectOption, SessionMode, SessionModeState

from drivers.contract.driver_info import (
    ASK_MODE,
    EFFORT_OPTION,
    FAST_OPTION,
    MODE_OPTION,
    SLASH_OPTION,
    DriverInfo,
    ModelName,
    Option,
    ToolGrant,
)
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.errors import BadRequest
from gateway.sessions.settings import SessionSettings, with_mode_option

MODES = (
    SessionMode(id=ASK_MODE, name="Ask", description="Asks before each of the agent's tools runs."),
    SessionMode(id="edit", name="Edit", description="Reads, searches and edits files without asking; asks before all else."),
    SessionMode(id="auto", name="Auto", description="Runs all of the agent's tools without asking."),
)
TRUSTED_KINDS: Mapping[str, frozenset[str] | None] = {
    ASK_MODE: frozenset(),
    "edit": frozenset({"read", "search", "edit", "think"}),
    "auto": None,
}
"""The kinds of tools that run without asking in each mode. None means all of them."""
CONFIG_ID = "permissions"
"""Id of the config option that sets the mode. `mode` sets it too, where the agent's CLI has modes of its own."""
_CATEGORIES = {"model": "model", EFFORT_OPTION: "thought_level", FAST_OPTION: "model_config"}
"""The categories of options, which clients display apart."""
DEFAULT = "default"
"""The value that stands for an option's empty value, which is the CLI's own default."""


def modes(agent: ConfiguredAgent, config: SessionSettings) -> SessionModeState | None:
    """Return the modes and the current one, or None for a session without tools."""
    if not config.tools:
        return None
    return SessionModeState(current_mode_id=mode_of(agent, config), available_modes=_available(agent))


def _available(agent: ConfiguredAgent) -> list[SessionMode]:
    own = [SessionMode(id=mode.id, name=mode.name, description=mode.description) for mode in agent.modes]
    if MODE_OPTION in agent.locked and own:
        return own
    # Two modes of one name could not be distinguished.
    names = {mode.name for mode in own}
    return [*own, *(mode.model_copy(update={"name": f"{mode.name} (gateway)"}) if mode.name in names else mode for mode in MODES)]


def mode_of(agent: ConfiguredAgent, config: SessionSettings) -> str:
    """Return the id of the CLI's own mode, or of the gateway's most permissive mode whose tools are all trusted."""
    own, info = agent.mode(config.options), agent.info
    if own != ASK_MODE:
        return own
    tools = config.tools or ()
    if tools and all(grant.trust for grant in tools):
        return "auto"
    edits = [grant for grant in tools if _is_trusted(info, "edit", grant.name)]
    return "edit" if edits and all(grant.trust for grant in edits) else "ask"


def with_mode(agent: ConfiguredAgent, config: SessionSettings, mode_id: str) -> SessionSettings:
    """Return the settings with a mode: one of the gateway's trusts the tools of its kinds, and only those.

    One of the CLI's keeps the tools that were allowed one by one, unless the mode before was the gateway's. Raises BadRequest for
    an unknown mode, and Forbidden where the mode is locked.
    """
    own = [mode.id for mode in agent.modes]
    if mode_id not in (*own, *TRUSTED_KINDS):
        raise BadRequest(f"modeId: unknown mode {mode_id!r}; known are {', '.join((*own, *TRUSTED_KINDS))}")
    before = agent.mode(config.options)
    if mode_id in own:
        agent.check_locked({MODE_OPTION: mode_id})
        trusted = config if before != ASK_MODE else _trusting(agent.info, config, ASK_MODE)
        return with_mode_option(trusted, mode_id)
    if agent.info.permissions.modes:
        agent.check_locked({MODE_OPTION: ASK_MODE})
        config = with_mode_option(config, ASK_MODE)
    return _trusting(agent.info, config, mode_id)


def _trusting(info: DriverInfo, config: SessionSettings, mode_id: str) -> SessionSettings:
    tools = tuple(ToolGrant(grant.name, _is_trusted(info, mode_id, grant.name)) for grant in config.tools or ())
    return replace(config, tools=tools)


def _is_trusted(info: DriverInfo, mode_id: str, tool: str) -> bool:
    kinds = TRUSTED_KINDS[mode_id]
    return kinds is None or info.tool_kind(tool) in kinds


def config_options(agent: ConfiguredAgent, config: SessionSettings, models: Iterable[str]) -> list[Any]:
    """Return all config options: the mode, the model, and the agent's other options that are choices.

    `models` are the models that the agent's CLI lists.
    """
    mode = [_mode_option(agent, config)] if config.tools else []
    choices = [option for option in _choices(agent, config, tuple(models)) if not option.secret]
    names = agent.model_names
    return mode + [_select(option, config.options.get(option.name, option.default), names) for option in choices]


def commands_enabled(agent: ConfiguredAgent, config: SessionSettings) -> bool:
    """Whether a prompt that begins with `/` is a slash command in this session, and not text."""
    option = next((option for option in agent.options if option.name == SLASH_OPTION), None)
    return option is None or config.options.get(SLASH_OPTION, option.default) == "on"


def _choices(agent: ConfiguredAgent, config: SessionSettings, models: tuple[str, ...]) -> list[Option]:
    """Return the options that are choices. The model's choices are those that the CLI lists, if it lists any."""
    omitted = {MODE_OPTION} if agent.info.permissions.modes else set()
    omitted |= set() if _has_fast_mode(agent, config, models) else {FAST_OPTION}
    settable = [o for o in agent.settable_options if o.name not in omitted]
    listed = {"model": models, EFFORT_OPTION: ("", *agent.efforts) if agent.efforts else ()}
    options = [replace(o, choices=listed[o.name]) if o.name in listed and not o.choices else o for o in settable]
    return [
        replace(o, choices=("", *o.choices)) if o.name == "model" and "" not in o.choices and DEFAULT not in o.choices else o
        for o in options
        if o.choices
    ]


def _has_fast_mode(agent: ConfiguredAgent, config: SessionSettings, models: tuple[str, ...]) -> bool:
    """Whether the session's model has a fast mode, or may have one because the CLI does not list it."""
    default = next((option.default for option in agent.options if option.name == "model"), "")
    model = config.options.get("model", default) or DEFAULT
    return bool(agent.fast_models) and (model in agent.fast_models or model not in models)


def _mode_option(agent: ConfiguredAgent, config: SessionSettings) -> SessionConfigOptionSelect:
    return SessionConfigOptionSelect(
        type="select",
        id=CONFIG_ID,
        name="Permissions",
        description="What the agent does without asking.",
        category="mode",
        current_value=mode_of(agent, config),
        options=[
            SessionConfigSelectOption(value=mode.id, name=mode.name, description=mode.description) for mode in _available(agent)
        ],
    )


def _select(option: Option, value: str, names: Mapping[str, ModelName]) -> SessionConfigOptionSelect:
    # The current value may not be listed: an alias, or a new model.
    values = dict.fromkeys([*option.choices, value])
    return SessionConfigOptionSelect(
        type="select",
        id=option.name,
        name=option.title,
        description=option.description,
        category=_CATEGORIES.get(option.name),
        current_value=value or DEFAULT,
        options=[_choice(option, v, names) for v in values if v or DEFAULT not in values],
    )


def _choice(option: Option, value: str, names: Mapping[str, ModelName]) -> SessionConfigSelectOption:
    known = names.get(value) if option.name == "model" else None
    if known is not None:
        return SessionConfigSelectOption(value=value, name=known.name, description=known.description or None)
    name = value.replace("_", " ").capitalize() if option.name in (EFFORT_OPTION, FAST_OPTION) else value
    return SessionConfigSelectOption(value=value or DEFAULT, name=name or "Default")


def with_option(agent: ConfiguredAgent, config: SessionSettings, name: str, value: str, models: Iterable[str]) -> SessionSettings:
    """Return the settings with a config option set.

    Raises BadRequest for an unknown option or value, and Forbidden for a locked option.
    """
    if name == CONFIG_ID or (name == MODE_OPTION and agent.info.permissions.modes):
        return with_mode(agent, config, value)
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
    agent.check_values({name: plain})
    return replace(config, options={**config.options, name: plain})
