"""An ACP agent's own settings, its modes and config options, as options of a session; pure.

A client can choose among them once the agent has told them; before that they can be set by hand, by `mode` and `config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drivers.contract.errors import AgentUnavailable
from drivers.contract.info import Option

PREFIX = "config."
"""How the option for one of the agent's config options is called: this and its id."""


def offered(modes: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> tuple[Option, ...]:
    """What there is to choose: the modes, and each config option by what the agent tells of it. Empty is its own default.

    The model has an option of its own; an agent that has its modes among its config options too is asked in one way.
    """
    found = [Option("mode", "Mode", "The agent's own mode; empty is its default.", choices=("", *modes))] if modes else []
    for name, option in options.items():
        if option.get("category") == "model" or (modes and option.get("category") == "mode"):
            continue
        choices = ("true", "false") if option.get("type") == "boolean" else tuple(values_of(option))
        title, told = str(option.get("name") or name), str(option.get("description") or "The agent's own setting.")
        found.append(Option(PREFIX + name, title, told, choices=("", *choices)))
    return tuple(found)


def asked(options: Mapping[str, str]) -> dict[str, str]:
    """The config options that a session sets, by their ids. Raises AgentUnavailable for a `config` that cannot be read."""
    chosen = {name.removeprefix(PREFIX): value for name, value in options.items() if name.startswith(PREFIX) and value}
    return {**_listed(options.get("config", "")), **chosen}


def values_of(option: Mapping[str, Any]) -> list[str]:
    """The values of a select, whether grouped or not."""
    found: list[str] = []
    for item in option.get("options") or ():
        found += values_of(item) if "options" in item else [item["value"]]
    return found


def _listed(given: str) -> dict[str, str]:
    """`ID=VALUE,ID=VALUE` as a mapping."""
    pairs = [pair.strip().partition("=") for pair in given.split(",") if pair.strip()]
    found = {name.strip(): value.strip() for name, equals, value in pairs if name and equals}
    if len(found) != len(pairs):
        raise AgentUnavailable(f"the option config is {given!r}; write ID=VALUE, with commas between several")
    return found
