"""What is installed: each agent's program asked once for its version, login and models, beside the work, never before it.

Answers are kept in a file of the data directory under the program's path and modification time, so that a restart knows them
at once; they are asked again in the background when they have grown old.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from drivers.contract.events import SlashCommand
from drivers.contract.info import Option, Probe
from drivers.runtime.process import Spawner
from gateway.agents.configured import Agents, ConfiguredAgent
from gateway.errors import GatewayError
from gateway.security.redaction import Redactor

log = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds that a request waits for the first answer of a program."""
FRESH, FRESH_TROUBLE = 600.0, 15.0
"""Seconds until an answer is asked for again in the background; and one that tells of trouble, which may be mended."""


@dataclass(frozen=True, slots=True)
class DiscoveredAgent:
    """What is known of one agent. `problem` says why it is not offered and what to do; None if it is."""

    agent: ConfiguredAgent
    program: str
    probe: Probe
    problem: str | None

    @property
    def version(self) -> str:
        return self.probe.version or "0.0.0"


class Discovery:
    """Asks, remembers, and asks again."""

    def __init__(self, agents: Agents, spawner: Spawner, file: Path, redactor: Redactor) -> None:
        self._agents, self._spawner, self._file, self._redactor = agents, spawner, file, redactor
        self._known: dict[str, Probe] = _read(file)
        self._asked_at: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Ask every program, in the background."""
        for agent in self._agents:
            if agent.problem() is None:
                agent.apply_probe(self._known.get(self._key(agent), Probe()))
                self._ask_soon(agent)

    async def available(self) -> list[DiscoveredAgent]:
        """The agents that can be used here and now."""
        return [finding for finding in await self.all_agents() if finding.problem is None]

    async def all_agents(self) -> list[DiscoveredAgent]:
        """All configured agents; the first time it waits for their programs to answer, up to PATIENCE."""
        usable = [agent for agent in self._agents if agent.problem() is None]
        for agent in usable:
            self._refresh(agent)
        new = [self._asking[a.name] for a in usable if a.name in self._asking and self._key(a) not in self._known]
        if new:
            await asyncio.wait(new, timeout=PATIENCE)
        return [self._finding(agent) for agent in self._agents]

    def current(self, agent: ConfiguredAgent) -> DiscoveredAgent:
        """What is known of one agent so far."""
        return self._finding(agent)

    async def probe(self, agent: ConfiguredAgent, *, refresh: bool = False) -> DiscoveredAgent:
        """One agent; the first time, or `anew`, it waits for its program to answer, up to PATIENCE."""
        if agent.problem() is None:
            if refresh:
                self._ask_soon(agent)
            else:
                self._refresh(agent)
            asking = self._asking.get(agent.name)
            if asking is not None and (refresh or self._key(agent) not in self._known):
                await asyncio.wait([asking], timeout=PATIENCE)
        return self._finding(agent)

    async def wait_for_probe(self, agent: ConfiguredAgent) -> DiscoveredAgent | None:
        """What a program says that took longer than PATIENCE, as soon as it does; None where it has answered before."""
        asking = self._asking.get(agent.name)
        if asking is None or asking.done() or agent.problem() is not None or self._key(agent) in self._known:
            return None
        await asyncio.wait([asking])
        return self._finding(agent)

    async def close(self) -> None:
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def _finding(self, agent: ConfiguredAgent) -> DiscoveredAgent:
        problem = agent.problem()
        if problem is not None:
            return DiscoveredAgent(agent, "", Probe(), problem)
        probe = self._known.get(self._key(agent), Probe())
        if probe.logged_in is False and probe.problem is None:
            problem = _log_in(agent)
        return DiscoveredAgent(agent, agent.program(), probe, probe.problem or problem)

    def _refresh(self, agent: ConfiguredAgent) -> None:
        known = self._known.get(self._key(agent))
        well = known is not None and known.problem is None and known.logged_in is not False
        age = time.monotonic() - self._asked_at.get(agent.name, float("-inf"))
        if known is None or age > (FRESH if well else FRESH_TROUBLE):
            self._ask_soon(agent)

    def _ask_soon(self, agent: ConfiguredAgent) -> None:
        if agent.name in self._asking and not self._asking[agent.name].done():
            return
        self._asked_at[agent.name] = time.monotonic()
        self._asking[agent.name] = asyncio.create_task(self._ask(agent), name=f"probe {agent.name}")

    async def _ask(self, agent: ConfiguredAgent) -> None:
        key = self._key(agent)
        try:
            probe = await agent.driver.probe(agent.spec({}), self._spawner)
        except GatewayError as error:
            probe = Probe(problem=str(error))
        except Exception as error:
            log.exception("agent %s cannot be probed", agent.name)
            probe = Probe(problem=f"{type(error).__name__}: {error}")
        if probe.problem:
            probe = replace(probe, problem=self._redactor.clean(probe.problem))
            log.warning("agent %s: %s", agent.name, probe.problem)
        agent.apply_probe(probe)
        self._known[key] = probe
        await asyncio.to_thread(_write, self._file, self._known)

    def _key(self, agent: ConfiguredAgent) -> str:
        program = agent.program()
        changed = os.stat(program).st_mtime_ns if program else 0
        return f"{agent.name}|{agent.settings.driver}|{program}|{changed}|{agent.info.version}"


def _log_in(agent: ConfiguredAgent) -> str:
    """What to do for one that is not logged in. A key that only sessions bring does not count: /meta is for everybody."""
    place = f"agents.{agent.name}"
    keys = [f"in {place}.options.{option.name}" for option in agent.info.options if option.secret and option.name == "api_key"]
    where = " or ".join([*keys, f"in {place}.env"])
    return f"agent {agent.name!r} is not logged in: log in with its CLI, or put its API key {where}"


def _read(file: Path) -> dict[str, Probe]:
    try:
        return {key: _probe(value) for key, value in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _probe(value: dict[str, Any]) -> Probe:
    commands = tuple(SlashCommand.model_validate(command) for command in value.get("commands", ()))
    options = tuple(Option(**{**option, "choices": tuple(option["choices"])}) for option in value.get("options", ()))
    said = value.get("images"), commands, value.get("additional_directories"), options
    return Probe(value["version"], value["problem"], value["logged_in"], tuple(value["models"]), *said)


def _write(file: Path, known: dict[str, Probe]) -> None:
    whole = file.with_suffix(".new")
    # Trouble is asked about anew at a start, and what a broken program says may hold a secret.
    well = {key: asdict(probe) for key, probe in known.items() if probe.problem is None and probe.logged_in is not False}
    whole.write_text(json.dumps(well, default=SlashCommand.model_dump))
    whole.replace(file)
