"""`portico agents`: lists the agents that Portico knows, and adds or removes the table of one in the configuration file."""

from __future__ import annotations

import difflib
import json
import os
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from drivers import driver_registry
from drivers.acp.catalogue import CatalogueAgent, catalogue
from drivers.runtime.cli_driver import Driver
from gateway.agents.configured_agents import Agents, ConfiguredAgent
from gateway.cli.file_replacement import replace_file
from gateway.cli.options import CONFIG, config_errors, load_settings
from gateway.cli.output import say
from gateway.cli.toml_tables import NotEditable, with_agent, without_agent
from gateway.config import Settings, explicit_file, load, parse, user_file
from gateway.errors import ConfigError
from gateway.terminal_text import json_text, one_line

NOT_ADDED = frozenset({"acp", "echo", "script"})
"""Drivers that are no agent by themselves, or are for tests."""
UNTESTED = "Portico is not tested with it: whether it asks before it runs a tool is not known"
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


@dataclass(frozen=True)
class ListedAgent:
    """One agent. `state` is `offered`, `add` if it is offered only after `portico agents add`, or `missing` if its program is not
    found. `program` is the path of its program. `tested` is the version that is tested, of an agent of the catalogue, which the
    rest is about too."""

    name: str
    title: str
    state: str
    configured: bool
    program: str | None = None
    install: str = ""
    command: str = ""
    tested: str | None = None
    key: str = ""
    needs: str = ""
    notes: str = ""
    website: str = ""


@click.group()
@CONFIG
@click.pass_context
def agents(context: click.Context, config: Path | None) -> None:
    """List the agents that Portico knows; add one to the configuration, or remove it."""
    # It may stand before the subcommand or after it.
    context.obj = config


@agents.command("list")
@CONFIG
@JSON
@click.pass_obj
def list_agents(group: Path | None, config: Path | None, as_json: bool) -> None:
    """List all agents: configured agents, agents that are offered without a configuration, and agents that can be installed."""
    with config_errors():
        found = list(_listed(load_settings(config or group, None)))
        for agent in found:
            if as_json:
                say(json_text(json.dumps(asdict(agent), ensure_ascii=False)))
        if not as_json:
            rows = [(agent.name, agent.state, agent.title, _remark(agent)) for agent in found]
            widths = [max(len(row[n]) for row in rows) for n in range(3)]
            for row in rows:
                say(one_line("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])))


@agents.command()
@CONFIG
@JSON
@click.option("--as", "agent", metavar="AGENT", help="The name of the agent for clients; by default NAME.")
@click.option("--program", metavar="PATH", help="Its program, a path or a name on PATH; by default the usual name.")
@click.argument("name")
@click.pass_obj
def add(group: Path | None, config: Path | None, as_json: bool, agent: str | None, program: str | None, name: str) -> None:
    """Add the agent NAME of `portico agents list` to the configuration file. A running daemon reads it at its next start."""
    config = config or group
    with config_errors():
        settings = _settings_of_file(config)
        driver = _driver(name)
        agent = agent or driver.name
        if agent in settings.agents:
            raise ConfigError(f"{settings.file} has [agents.{agent}] already; edit it there, or choose another name with --as")
        wanted = program or driver.info().program.name or ""
        path = shutil.which(os.path.expanduser(wanted))
        if program and path is None:
            raise ConfigError(f"there is no program {program!r}")
        table = {"driver": driver.name, **({"program": program} if program else {})}
        file = _edit(config, lambda text: with_agent(text, agent, table, driver.info().title))
        if as_json:
            say(json_text(json.dumps({"agent": agent, "file": str(file), "table": table, "program": path})))
            return
        say(f"added [agents.{agent}] to {file}: {', '.join(f'{key} = {json.dumps(value)}' for key, value in table.items())}")
        for line in _advice(driver, wanted, installed=path is not None):
            say(line)
        say("a daemon that runs offers it after a restart")


@agents.command()
@CONFIG
@JSON
@click.argument("name")
@click.pass_obj
def remove(group: Path | None, config: Path | None, as_json: bool, name: str) -> None:
    """Remove the table of the agent NAME, with those in it, from the configuration file."""
    config = config or group
    with config_errors():
        settings = _settings_of_file(config)
        if name not in settings.agents:
            raise ConfigError(f"the configuration has no [agents.{name}]; it has {', '.join(settings.agents) or 'no agents'}")
        file = _edit(config, lambda text: without_agent(text, name))
        offered = any(agent.name == name and agent.problem() is None for agent in Agents(load_settings(config, None)))
        if as_json:
            say(json_text(json.dumps({"agent": name, "file": str(file), "offered": offered})))
            return
        say(f"removed [agents.{name}] from {file}")
        if offered:
            say(f"{name} is offered without an entry too, because its program is on PATH (server.discover_agents)")


def _settings_of_file(config: Path | None) -> Settings:
    """Return the settings of the file that is edited, without settings of the environment. Raises ConfigError."""
    return load(explicit_file(config), {})


def _driver(name: str) -> Driver:
    """Return the driver of an agent, by its name or its id in the protocol's registry. Raises ConfigError."""
    ids = {entry.id: entry.agent for entry in catalogue().values()}
    known = {name: driver for name, driver in driver_registry.load().items() if name not in NOT_ADDED}
    found = known.get(ids.get(name, name))
    if found is None:
        close = difflib.get_close_matches(name, [*known, *ids], n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(
            f"there is no agent {name!r}; {hint}`portico agents list` has all; others are configured with the driver acp"
        )
    return found


def _edit(config: Path | None, edited: Callable[[str], str]) -> Path:
    """Edit the configuration file, which may be missing, and return its path. Raises ConfigError if the result is invalid."""
    file = (explicit_file(config) or user_file()).expanduser()
    content = file.read_bytes().decode() if file.exists() else ""
    # Editors on Windows write a byte order mark, which TOML does not know. It stays.
    text = content.removeprefix("\ufeff")
    try:
        changed = edited(text)
    except NotEditable as error:
        raise ConfigError(f"{file} is left as it is: {error}; edit it by hand") from None
    Agents(parse(tomllib.loads(changed), str(file)))
    # It may contain keys.
    replace_file(file, content[: len(content) - len(text)] + changed, 0o600)
    return file


def _advice(driver: Driver, program: str, *, installed: bool) -> Iterator[str]:
    """Yield what a user still has to do for an agent, and has to know about it."""
    entry, info = catalogue().get(driver.name), driver.info()
    if not installed:
        how = f"install it with `{info.program.install}`" if info.program.install or entry is None else f"see {entry.website}"
        yield f"its program {program!r} is not on PATH yet: {how}"
    if entry is not None:
        texts = (("it needs ", entry.needs), ("it is told a key by: ", entry.key), ("", entry.notes))
        yield from (label + text for label, text in texts if text)
        if not entry.tested:
            yield UNTESTED


def _listed(settings: Settings) -> Iterator[ListedAgent]:
    """Yield the agents in the order of `/meta`, then the others of the catalogue."""
    known = Agents(settings)
    for agent in known:
        yield _of_agent(agent, catalogue().get(agent.settings.driver), configured=agent.name in settings.agents)
    for name, entry in catalogue().items():
        if known.find(name) is None:
            program = shutil.which(entry.program)
            yield _of_entry(entry, "add" if program else "missing", program)


def _of_agent(agent: ConfiguredAgent, entry: CatalogueAgent | None, *, configured: bool) -> ListedAgent:
    usable = agent.problem() is None
    listed = ListedAgent(
        agent.name, agent.title, "offered" if usable else "missing", configured, install=agent.info.program.install
    )
    if entry is not None:
        listed = replace(_of_entry(entry, listed.state, None), name=agent.name, title=agent.title, configured=configured)
    return replace(listed, program=agent.program() or None) if usable else listed


def _of_entry(entry: CatalogueAgent, state: str, program: str | None) -> ListedAgent:
    tested = entry.version if entry.tested else None
    command = shlex.join([entry.program, *entry.args])
    rest = entry.install, command, tested, entry.key, entry.needs, entry.notes, entry.website
    return ListedAgent(entry.agent, entry.title, state, False, program, *rest)


def _remark(agent: ListedAgent) -> str:
    """Return the text of the list about an agent beside its state: its program, or how it is offered."""
    if agent.state == "add":
        return f"{agent.program}; offered after `portico agents add {agent.name}`"
    if agent.state == "offered":
        return agent.program or ""
    return f"`{agent.install}`" if agent.install else agent.website
