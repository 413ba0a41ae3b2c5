"""An ACP agent's session modes and session config options, as options of a gateway session. No I/O, no import of `acp`.

A probe of the agent finds which there are. Until then a client sets them by the options `mode` and `config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drivers.contract.driver_info import Option
from drivers.contract.errors import AgentUnavailable

PREFIX = "config."
"""An option for one of the agent's config options is named by this prefix and the config option's id."""


def options_of(modes: Sequence[str], config_options: Mapping[str, Mapping[str, Any]]) -> tuple[Option, ...]:
    """The options with their choices: `mode`, and one per config option. The empty choice is the agent's default.

    Omits the config option of the category `model`, which the option `model` sets, and that of the category `mode` if the
    agent has modes too.
    """
    found = [Option("mode", "Mode", "The agent's own mode; empty is its default.", choices=("", *modes))] if modes else []
    for name, option in config_options.items():
        if option.get("category") == "model" or (modes and option.get("category") == "mode"):
            continue
        choices = ("true", "false") if option.get("type") == "boolean" else tuple(values_of(option))
        title, description = str(option.get("name") or name), str(option.get("description") or "The agent's own setting.")
        found.append(Option(PREFIX + name, title, description, choices=("", *choices)))
    return tuple(found)


def requested(options: Mapping[str, str]) -> dict[str, str]:
    """The config options that a session sets, by id; `config.ID` wins over `config`. Raises AgentUnavailable for a malformed
    `config`."""
    chosen = {name.removeprefix(PREFIX): value for name, value in options.items() if name.startswith(PREFIX) and value}
    return {**_parse(options.get("config", "")), **chosen}


def values_of(option: Mapping[str, Any]) -> list[str]:
    """The values of a select, grouped or not."""
    found: list[str] = []
    for item in option.get("options") or ():
        found += values_of(item) if "options" in item else [item["value"]]
    return found


def _parse(config: str) -> dict[str, str]:
    """`ID=VALUE,ID=VALUE` as a mapping."""
    pairs = [pair.strip().partition("=") for pair in config.split(",") if pair.strip()]
    found = {name.strip(): value.strip() for name, equals, value in pairs if name and equals}
    if len(found) != len(pairs):
        raise AgentUnavailable(f"the option config is {config!r}; write ID=VALUE, with commas between several")
    return found
