"""What a client can set of a session: the modes (how much is asked), and the agent's options as config options; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from acp.schema import SessionConfigOptionSelect, SessionConfigSelectOption, SessionMode, SessionModeState

from drivers.contract.info import DriverInfo, Option, ToolGrant
from gateway.agents.configured import ConfiguredAgent
from gateway.errors import BadRequest
from gateway.sessions.settings import SessionSettings

MODES = (
    SessionMode(id="ask", name="Ask", description="Asks before each of the agent's tools runs."),
    SessionMode(id="edit", name="Edit", description="Reads, searches and edits files without asking; asks before all else."),
    SessionMode(id="auto", name="Auto", description="Runs all of the agent's tools without asking."),
)
QUIET: Mapping[str, frozenset[str] | None] = {
    "ask": frozenset(),
    "edit": frozenset({"read", "search", "edit", "think"}),
    "auto": None,
}
"""The kinds of tools that run without asking in each mode; None for all of them."""
MODE_OPTION = "permissions"
DEFAULT = "default"
"""How an option's empty value, the CLI's own default, is called in the protocol."""


def all_tools(agent: ConfiguredAgent) -> tuple[ToolGrant, ...]:
    """Every tool that the agent offers, none of them trusted: such a client expects that they are there, and to be asked."""
    return tuple(ToolGrant(tool.name) for tool in agent.info.tools)


def modes(info: DriverInfo, config: SessionSettings) -> SessionModeState | None:
    """The modes and the one that the session's tools are in; None where there are no tools."""
    if not config.tools:
        return None
    return SessionModeState(current_mode_id=mode_of(info, config), available_modes=list(MODES))


def mode_of(info: DriverInfo, config: SessionSettings) -> str:
    """The widest mode whose tools are all trusted."""
    tools = config.tools or ()
    if tools and all(grant.trust for grant in tools):
        return "auto"
    edits = [grant for grant in tools if _quiet(info, "edit", grant.name)]
    return "edit" if edits and all(grant.trust for grant in edits) else "ask"


def with_mode(info: DriverInfo, config: SessionSettings, mode_id: str) -> SessionSettings:
    """The settings in that mode: which of the session's tools run without asking. Raises BadRequest."""
    if mode_id not in QUIET:
        raise BadRequest(f"modeId: there is no mode {mode_id!r}; there are {', '.join(QUIET)}")
    return replace(config, tools=tuple(ToolGrant(grant.name, _quiet(info, mode_id, grant.name)) for grant in config.tools or ()))


def _quiet(info: DriverInfo, mode_id: str, tool: str) -> bool:
    kinds = QUIET[mode_id]
    return kinds is None or info.tool_kind(tool) in kinds


def config_options(agent: ConfiguredAgent, config: SessionSettings, models: Iterable[str]) -> list[Any]:
    """The complete list: the mode, the model, and each other option that is a choice."""
    found = [_mode_option(agent.info, config)] if config.tools else []
    chosen = [option for option in _choices(agent, tuple(models)) if not option.secret]
    return found + [_select(option, config.options.get(option.name, option.default)) for option in chosen]


def takes_commands(agent: ConfiguredAgent, config: SessionSettings) -> bool:
    """Whether a `/` at the beginning of a prompt is a command in this session, and not text."""
    wanted = agent.info.slash_option
    default = next((option.default for option in agent.options if option.name == wanted), "")
    return wanted is None or config.options.get(wanted, default) == "on"


def _choices(agent: ConfiguredAgent, models: tuple[str, ...]) -> list[Option]:
    """The options that are choices; the model's are those that the CLI has named, if it has."""
    options = [replace(o, choices=models) if o.name == "model" and not o.choices else o for o in agent.options]
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
    # A value that the CLI does not list is one all the same: an alias, or a model that is new.
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
    """The settings with a config option set. Raises BadRequest that names what there is."""
    if name == MODE_OPTION:
        return with_mode(agent.info, config, value)
    known = {option.id: option for option in config_options(agent, config, models)}
    if name not in known:
        raise BadRequest(f"configId: there is no option {name!r}; there are {', '.join(sorted(known)) or 'none'}")
    values = [choice.value for choice in known[name].options]
    if value not in values:
        raise BadRequest(f"value: option {name!r} cannot be {value!r}; choose one of {', '.join(values)}")
    option = next(option for option in agent.options if option.name == name)
    plain = "" if value == DEFAULT and DEFAULT not in option.choices and DEFAULT not in models else value
    agent.check_options({name: plain})
    return replace(config, options={**config.options, name: plain})
