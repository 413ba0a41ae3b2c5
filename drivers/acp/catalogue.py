"""The catalogue of agents that speak the Agent Client Protocol: reads agents.toml, whose comments explain its keys."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("agents.toml")
INSTALL = {"npx": "npm install -g {}", "uvx": "uv tool install --upgrade {}", "binary": ""}
"""The command that installs or updates an agent, by its distribution; the vendor has one of its own for a binary."""


@dataclass(frozen=True, slots=True)
class CatalogueAgent:
    """One entry: the agent `agent`, whose id in the protocol's public registry is `id`.

    Its command is `program` with `args`; `install` is empty where no package manager has it. `version` is the one that was
    tested, or that of the registry's entry. `env` are the variables that it gets unless the configuration sets them, whatever the
    gateway's environment has; `options` are the defaults of its options, `earlier_modes` what earlier versions call the mode.
    """

    id: str
    agent: str
    title: str
    description: str
    version: str
    website: str
    program: str
    args: tuple[str, ...]
    install: str
    tested: bool = False
    needs: str = ""
    key: str = ""
    variables: tuple[str, ...] = ()
    login: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    earlier_modes: tuple[str, ...] = ()
    client_methods: tuple[str, ...] | None = None
    folders: tuple[str, ...] = ()
    same_name: str = ""
    notes: str = ""


@cache
def catalogue() -> Mapping[str, CatalogueAgent]:
    """All entries by the name of the agent, in the order of the file."""
    with FILE.open("rb") as file:
        entries = map(_entry, tomllib.load(file)["agents"])
        return {entry.agent: entry for entry in entries}


def _entry(table: Mapping[str, Any]) -> CatalogueAgent:
    own: dict[str, Any] = dict(table["portico"])
    [(kind, found)] = table["distribution"].items()
    # A binary has the same arguments on all platforms.
    distribution = next(iter(found.values())) if kind == "binary" else found
    env = {**distribution.get("env", {}), **own.pop("env", {})}
    rest: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in own.items()}
    return CatalogueAgent(
        id=table["id"],
        agent=rest.pop("agent", table["id"]),
        title=table["name"],
        description=table["description"],
        version=table["version"],
        website=table["website"],
        args=tuple(distribution.get("args", ())),
        install=INSTALL[kind].format(distribution.get("package")),
        env=env,
        **rest,
    )
