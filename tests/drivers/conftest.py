"""Fixtures of the driver tests: processes and agents over small Python programs, all ended after the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from drivers.codecs.output_event_lines import EventLineCodec
from drivers.contract.agent_specs import Limits
from drivers.contract.client_services import ClientServices
from drivers.contract.codec import Codec, Command, Launch
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.process import Ledger, Process, Spawner
from tests.drivers.small_programs import LIMITS, OpenAgent, StartProcess, python
from tests.support.manual_clock import ManualClock

settings.register_profile(
    "same-every-time", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same-every-time")


@pytest.fixture
async def start(tmp_path: Path, clock: ManualClock) -> AsyncIterator[StartProcess]:
    """Starts a program as a Process, with the limits of time of the test's clock."""
    started: list[Process] = []

    async def spawn(code: str, *, stdin: bytes | None = None, ledger: Ledger | None = None, **env: str) -> Process:
        command = Command(python(code), tmp_path, env, stdin=stdin)
        process = await Spawner("test", ledger, clock=clock).spawn(command)
        started.append(process)
        return process

    yield spawn
    for process in started:
        await process.close(0.0)


@pytest.fixture
async def open_agent(tmp_path: Path, clock: ManualClock) -> AsyncIterator[OpenAgent]:
    """Starts a program that speaks event lines as an agent, with the test's clock; with `task` its run has already started."""
    opened: list[CliAgent] = []

    async def begin(
        code: str,
        limits: Limits = LIMITS,
        *,
        task: str | None = None,
        codec: Codec | None = None,
        services: ClientServices | None = None,
    ) -> CliAgent:
        command = Command(python(code), tmp_path, {}, stdin=None if task is None else task.encode())
        launch = Launch(command, codec or EventLineCodec(once=task is not None))
        agent = await CliAgent.start(launch, Spawner("test", clock=clock), limits, services)
        opened.append(agent)
        return agent

    yield begin
    for agent in opened:
        await agent.close(0.0)
