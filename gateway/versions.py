"""What is installed: the version behind each agent, asked of its program once, beside the work, never before it."""

from __future__ import annotations

import asyncio
import logging

from drivers.base import Probe
from drivers.process import Spawner
from gateway.agents import Agents, ConfiguredAgent
from gateway.errors import GatewayError

log = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds that a `/meta` waits for a first probe."""


class Versions:
    """Probes agents in the background and remembers what they said."""

    def __init__(self, agents: Agents, spawner: Spawner) -> None:
        self._agents, self._spawner = agents, spawner
        self._probes: dict[str, asyncio.Task[Probe]] = {}

    async def offered(self) -> list[tuple[ConfiguredAgent, str]]:
        """The agents that can be used now, with their versions."""
        usable = [agent for agent in self._agents if agent.problem() is None]
        probes = [self._probe(agent) for agent in usable]
        await asyncio.wait(probes, timeout=PATIENCE) if probes else None
        return [(agent, _version(probe)) for agent, probe in zip(usable, probes, strict=True)]

    async def close(self) -> None:
        for probe in self._probes.values():
            probe.cancel()
        await asyncio.gather(*self._probes.values(), return_exceptions=True)

    def _probe(self, agent: ConfiguredAgent) -> asyncio.Task[Probe]:
        if agent.name not in self._probes:
            self._probes[agent.name] = asyncio.create_task(self._ask(agent))
        return self._probes[agent.name]

    async def _ask(self, agent: ConfiguredAgent) -> Probe:
        try:
            probe = await agent.driver.probe(agent.spec({}), self._spawner)
        except GatewayError as error:
            probe = Probe(problem=str(error))
        if probe.problem:
            log.warning("agent %s: %s", agent.name, probe.problem)
        return probe


def _version(probe: asyncio.Task[Probe]) -> str:
    found = probe.result().version if probe.done() and not probe.cancelled() else None
    return found or "0.0.0"
