"""Discovery: probes each agent's program for its version, login and models, in the background.

Results are cached in a file of the data directory by the program's path and modification time, so that they are known
immediately after a restart. Old results are refreshed in the background. A program that was replaced, as by an update, is probed
again when it is next listed or started, and its earlier results are forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from pathlib import Path

from drivers.compatibility import Support, compatibility, support_of
from drivers.contract.agent_specs import AgentSpec
from drivers.contract.driver_info import Probe
from drivers.runtime.clock import SYSTEM_CLOCK, Clock, Timer
from drivers.runtime.install_commands import install_command, pull_command
from drivers.runtime.process import Spawner
from drivers.runtime.temporary_folder import throwaway_folder
from gateway.agents.configured_agents import Agents, ConfiguredAgent, Installation
from gateway.agents.folder_access import FOLDER_OF_AGENT, SlowAccesses, in_time
from gateway.agents.probe_cache import CACHE, read_cache, write_cache
from gateway.errors import AgentProblem, GatewayError
from gateway.security.redaction import Redactor

log = logging.getLogger(__name__)

PROBE_TIMEOUT = 10.0
"""Seconds that a request waits for the first result of a probe. The probe itself continues."""
MAX_PROBES = 4
"""Probes at the same time. Each starts a CLI, some several times; others wait."""
MAX_PROBE_OUTPUT = 4 * 1024 * 1024
"""Bytes that a probed program may write."""
MAX_AGE, MAX_AGE_PROBLEM = 600.0, 15.0
"""Seconds until a result is refreshed; and one with a problem, which the user may have solved."""
REFRESH_DELAY = 5.0
"""Seconds that the refresh of a result waits. It starts the CLI up to three times, and would slow down the start of a session."""


@dataclass(frozen=True, slots=True)
class DiscoveredAgent:
    """One agent, with the results of its last probe.

    Parameters:
        problem: Why the agent is not available, and what to do; None if it is available.
        probed: Whether the agent's program has answered a probe, or could not.
    """

    agent: ConfiguredAgent
    program: str
    probe: Probe
    problem: str | None
    probed: bool = True

    @property
    def command(self) -> str | None:
        """The shell command that solves the problem; None without a problem, and where none is known."""
        if self.problem is None:
            return None
        if (missing := self.agent.missing_runtime) is not None:
            return install_command(missing)
        runtime, image = self.agent.settings.runtime, self.agent.settings.container.image
        if runtime is not None and image is not None:
            return pull_command(runtime, image) if f"the image {image} is not here" in self.problem else None
        if self.probe.logged_in is False and self.support != "unsupported":
            return self.agent.login_command()
        # Another program than the driver's own is not one that this command installs.
        return self.agent.info.program.install or None if self.agent.settings.program is None else None

    @property
    def version(self) -> str | None:
        """The version that the program has reported; before its first report, that in its files, or the driver's version."""
        if self.probe.version or self.problem:
            return self.probe.version
        return self.agent.installation.version

    @property
    def support(self) -> Support | None:
        """How well the version that the program has reported is supported; None where that is not known."""
        return support_of(self.agent.settings.driver, self.probe.version)

    @property
    def notes(self) -> list[str]:
        """The notes on the version that the program has reported."""
        table = compatibility().get(self.agent.settings.driver)
        return table.notes_on(self.probe.version) if table and self.probe.version else []


class Discovery:
    """Probes all agents, caches the results, and refreshes them.

    The results of an earlier start are applied to the agents immediately. `spawner` starts the programs: Discovery probes
    none until it has one. Without `probes_at_start` a program is probed when its agent is used.
    """

    def __init__(
        self, agents: Agents, data_dir: Path, redactor: Redactor, *, probes_at_start: bool = True, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._probes_at_start, self._clock = probes_at_start, clock
        self.spawner: Spawner | None = None
        self._agents, self._file, self._redactor = agents, data_dir / CACHE, redactor
        self._results: dict[str, Probe] = read_cache(self._file)
        self._probed_at: dict[str, float] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._replaced: dict[str, str] = {}
        """The versions of programs that were replaced, by the agents' names, until the new version is known."""
        self._delayed: dict[str, Timer] = {}
        self._places = asyncio.Semaphore(MAX_PROBES)
        self.looks = SlowAccesses[str, Installation]()
        for agent in agents:
            agent.kept = agent.look()
            if self._results:
                agent.apply_probe(self._result(agent) or Probe())

    def start(self) -> None:
        """Probe every program in the background."""
        for agent in self._agents if self._probes_at_start else ():
            if agent.installed:
                self._start_probe(agent)

    async def available(self) -> list[DiscoveredAgent]:
        """Return the agents that can be used now."""
        return [found for found in await self.all_agents() if found.problem is None]

    async def all_agents(self, *, refresh: bool = False) -> list[DiscoveredAgent]:
        """Return all configured agents. Without a result, or with `refresh`, wait for the probe, up to PROBE_TIMEOUT.

        With `refresh` an agent whose probe takes longer is returned as not probed, with its earlier result.
        """
        await self.find_programs()
        installed = [agent for agent in self._agents if agent.installed]
        for agent in installed:
            if refresh:
                self._start_probe(agent)
            else:
                self._refresh(agent)
        new = [self._probes[a.name] for a in installed if a.name in self._probes and (refresh or self._result(a) is None)]
        late = (await self._clock.wait(new, PROBE_TIMEOUT))[1] if new else ()
        found = [self._discovered(agent) for agent in self._agents]
        return [replace(one, probed=one.probed and self._probes.get(one.agent.name) not in late) for one in found]

    async def find_programs(self) -> None:
        """Look for the programs of all agents, each in a thread."""
        await asyncio.gather(*map(self._look, self._agents))

    def current(self, agent: ConfiguredAgent) -> DiscoveredAgent:
        """Return what is known about one agent, without waiting."""
        return self._discovered(agent)

    async def probe(self, agent: ConfiguredAgent, *, refresh: bool = False) -> DiscoveredAgent:
        """Return one agent. Without a result, or with `refresh`, wait for the probe, up to PROBE_TIMEOUT."""
        await self._look(agent)
        if agent.installed:
            if refresh:
                self._start_probe(agent)
            else:
                self._refresh(agent)
            probing = self._probes.get(agent.name)
            if probing is not None and (refresh or self._result(agent) is None):
                await self._clock.wait([probing], PROBE_TIMEOUT)
        return self._discovered(agent)

    async def check_supported(self, agent: ConfiguredAgent) -> None:
        """Raise AgentProblem if the program is older than the oldest supported version.

        It is probed before, unless that was done recently: a program may be updated without a change of the file that starts it.
        """
        if agent.too_old is None:
            return
        await self.probe(agent)
        probing = self._probes.get(agent.name)
        if probing is not None and not probing.done():
            await self._clock.wait([probing], PROBE_TIMEOUT)
        if (old := agent.too_old) is not None:
            raise AgentProblem(old)

    async def refresh(self, agent: ConfiguredAgent) -> None:
        """Probe the agent's program in the background, unless that was done recently."""
        await self._look(agent)
        if agent.installed:
            self._refresh(agent)

    def notice_replacement(self, agent: ConfiguredAgent) -> None:
        """Probe the agent's program in the background if it was replaced since it was probed: it is about to be started.

        Its spec, which has been made for that, has looked for it.
        """
        if agent.name in self._probed_at and (key := _key(agent)) is not None and key not in self._results:
            self._start_probe(agent)

    async def wait_for_probe(self, agent: ConfiguredAgent) -> DiscoveredAgent | None:
        """Wait for a probe that takes longer than PROBE_TIMEOUT, and return its result. None if there is a result already."""
        probing = self._probes.get(agent.name)
        if probing is None or probing.done() or not agent.installed or self._result(agent) is not None:
            return None
        await asyncio.wait([probing])
        return self._discovered(agent)

    async def settled(self) -> None:
        """Wait for the probes that are under way."""
        await asyncio.gather(*self._probes.values())

    async def close(self) -> None:
        self.spawner = None
        for timer in self._delayed.values():
            timer.cancel()
        tasks = [*self._probes.values(), *self.looks.tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self, agent: ConfiguredAgent) -> None:
        """Look for the agent's program in a thread. If its folder does not answer in time, what was found before counts."""
        found = await self.looks.ask(agent.name, agent.look, self._clock)
        if found is not None:
            agent.kept = found

    def _discovered(self, agent: ConfiguredAgent) -> DiscoveredAgent:
        installed, known = agent.installed_program(), self._result(agent)
        if installed is None:
            missing = agent.problem() or f"the program of agent {agent.name!r} is being replaced"
            return DiscoveredAgent(agent, "", Probe(), missing)
        if known is None and agent.too_old is not None:
            return DiscoveredAgent(agent, installed[0], Probe(agent.version), agent.too_old, probed=False)
        probe = known or Probe()
        problem = _log_in(agent) if probe.logged_in is False and probe.problem is None else probe.problem
        return DiscoveredAgent(agent, installed[0], probe, problem, known is not None)

    def _refresh(self, agent: ConfiguredAgent) -> None:
        known = self._result(agent)
        well = known is not None and known.problem is None and known.logged_in is not False
        age = self._clock.monotonic() - self._probed_at.get(agent.name, float("-inf"))
        if not well and (known is None or age > MAX_AGE_PROBLEM):
            self._start_probe(agent)
        elif well and age > MAX_AGE and agent.name not in self._delayed:
            self._delayed[agent.name] = self._clock.call_later(REFRESH_DELAY, self._start_probe, agent)

    def _start_probe(self, agent: ConfiguredAgent) -> None:
        delayed = self._delayed.pop(agent.name, None)
        if delayed is not None:
            delayed.cancel()
        if self.spawner is None or (agent.name in self._probes and not self._probes[agent.name].done()):
            return
        self._probed_at[agent.name] = self._clock.monotonic()
        self._probes[agent.name] = asyncio.create_task(self._probe(agent, self.spawner), name=f"probe {agent.name}")

    async def _probe(self, agent: ConfiguredAgent, spawner: Spawner) -> None:
        await self._look(agent)
        key = _key(agent)
        if key is None:
            # It was removed meanwhile: the agent's problem says so.
            return
        self._forget_replaced(agent, key)
        try:
            async with self._places, throwaway_folder(spawner.temporary) as folder:
                limited = spawner.with_output_limit(MAX_PROBE_OUTPUT)
                spec, sandboxed = await self._sandboxed(agent, limited, folder)
                probe = await agent.driver.probe(spec, sandboxed)
        except GatewayError as error:
            probe = Probe(problem=str(error))
        except Exception as error:
            log.exception("agent %s cannot be probed", agent.name)
            probe = Probe(problem=f"{type(error).__name__}: {error}")
        if problem := agent.refusal_of(probe.version) or probe.problem:
            probe = replace(probe, problem=self._redactor.clean(problem))
            log.warning("agent %s: %s", agent.name, probe.problem)
        await self._keep(agent, key, probe)

    async def _sandboxed(self, agent: ConfiguredAgent, spawner: Spawner, cwd: Path) -> tuple[AgentSpec, Spawner]:
        """The spec of an agent in a folder, and the spawner of its processes. Raises BadRequest, AgentProblem."""

        def made() -> tuple[AgentSpec, Spawner]:
            spec = replace(agent.spec({}), cwd=cwd)
            return spec, agent.sandboxed(spawner, spec)

        return await in_time(made, FOLDER_OF_AGENT)

    async def _keep(self, agent: ConfiguredAgent, key: str, probe: Probe) -> None:
        self._log_update(agent, probe.version)
        agent.apply_probe(probe)
        self._results[key] = probe
        try:
            await asyncio.to_thread(write_cache, self._file, self._results)
        except OSError as error:
            log.warning("the results of probes are not stored; all agents are probed again after a restart: %s", error)

    def _forget_replaced(self, agent: ConfiguredAgent, key: str) -> None:
        """Forget the results of the programs that the agent had before this one."""
        replaced = [other for other in self._results if other != key and other.startswith(f"{agent.name}|")]
        for other in replaced:
            if version := self._results.pop(other).version:
                self._replaced[agent.name] = version
        if replaced:
            agent.apply_probe(Probe())

    def _log_update(self, agent: ConfiguredAgent, version: str | None) -> None:
        before = self._replaced.pop(agent.name, None) if version else None
        if before and before != version:
            log.info("agent %r: version %s → %s", agent.name, before, version)

    def _result(self, agent: ConfiguredAgent) -> Probe | None:
        """Return the result of the probe of the program that `look` has found last; None if that program was not probed."""
        key = _key(agent)
        return self._results.get(key) if key else None


def _key(agent: ConfiguredAgent) -> str | None:
    """Identify the agent's program as it was found last; None if it is not found."""
    found = agent.installed_program()
    place = "" if agent.settings.run_in == "node" else f"|{agent.settings.run_in} {agent.settings.container.image or ''}"
    return f"{agent.name}|{agent.settings.driver}|{found[0]}|{found[1]}|{agent.info.version}{place}" if found else None


def _log_in(agent: ConfiguredAgent) -> str:
    """Return how to log in. Keys that only sessions bring do not count: /meta is the same for all clients."""
    table = f"agents.{agent.name}"
    keys = [f"in {table}.options.{option.name}" for option in agent.info.options if option.secret and option.name == "api_key"]
    where = " or ".join([*keys, f"in {table}.env"])
    command = agent.login_command()
    how = "log in with its CLI" if command is None else f"run `{command}` in a terminal on this machine"
    return f"agent {agent.name!r} is not logged in: {how}, or put its API key {where}"
