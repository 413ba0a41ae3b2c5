"""Driver: what a driver's author writes. `CliDriver` is all but two functions of one for a program that speaks lines."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

from drivers.contract.agent import Agent
from drivers.contract.codec import Command, Launch
from drivers.contract.errors import AgentUnavailable, DriverError
from drivers.contract.info import DriverInfo, Probe
from drivers.contract.lines import text_line
from drivers.contract.specs import AgentSpec, Limits, SessionSpec, TaskSpec
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.process import Spawner

VERSION = re.compile(r"\d+(?:\.\d+)+(?:[-+][0-9A-Za-z.-]+)?")
PROBE_SECONDS = 20.0


class Driver(ABC):
    """The code behind agents of one sort. Holds no state of its own; one instance serves every agent and session."""

    name: ClassVar[str]

    @abstractmethod
    def info(self) -> DriverInfo:
        """What it can do; the same answer at any time, without looking at the machine."""

    async def probe(self, spec: AgentSpec, spawner: Spawner) -> Probe:
        """Which version of the program is there? By default the first version number that `--version` prints."""
        if self.info().program is None:
            return Probe(version=self.info().version)
        try:
            code, said = await run_to_end(Command((spec.program, "--version"), spec.cwd, spec.env, stdin=b""), spawner)
        except (DriverError, TimeoutError) as error:
            return Probe(problem=f"{spec.program} --version: {error or 'no answer'}")
        found = VERSION.search(said)
        if code or not found:
            return Probe(problem=f"{spec.program} --version gave exit code {code} and no version: {said[:200]!r}")
        return Probe(version=found.group())

    @abstractmethod
    async def open(self, spec: SessionSpec, spawner: Spawner, limits: Limits) -> Agent:
        """A live native session that takes prompts. Raises AgentUnavailable or ResumeFailed."""

    @abstractmethod
    async def execute(self, spec: TaskSpec, spawner: Spawner, limits: Limits) -> Agent:
        """One task, already under way: `receive` until `session_end`. Raises AgentUnavailable."""


class CliDriver(Driver):
    """A driver whose agent is a process that writes one event a line.

    `tools_by_mcp`: a session that has application-side tools gets a `tool_server` for them, which its launch is to pass on.
    """

    tools_by_mcp: ClassVar[bool] = False

    @abstractmethod
    def session(self, spec: SessionSpec) -> Launch:
        """The process of a live session. Prompts and secrets never go in its arguments."""

    @abstractmethod
    def task(self, spec: TaskSpec) -> Launch:
        """The process of one task, with the task on its standard input."""

    async def open(self, spec: SessionSpec, spawner: Spawner, limits: Limits) -> Agent:
        if not (self.tools_by_mcp and spec.app_tools):
            return await CliAgent.start(self.session(spec), spawner, limits, spec.services)
        if spec.tool_host is None:
            raise AgentUnavailable("it takes application-side tools by MCP, and nobody serves them here")
        server = await spec.tool_host(spec.app_tools, self.info().mcp_call_id_keys)
        try:
            return await CliAgent.start(self.session(replace(spec, tool_server=server)), spawner, limits, spec.services)
        except BaseException:
            await asyncio.shield(server.close())
            raise

    async def execute(self, spec: TaskSpec, spawner: Spawner, limits: Limits) -> Agent:
        return await CliAgent.start(self.task(spec), spawner, limits)


async def run_to_end(command: Command, spawner: Spawner, seconds: float = PROBE_SECONDS) -> tuple[int, str]:
    """Run a short command: its exit code and what it printed. Raises AgentUnavailable or TimeoutError."""
    process = await spawner.spawn(command)
    printed: list[str] = []
    try:
        async with asyncio.timeout(seconds):
            while lines := await process.read_lines():
                printed += [text_line(line) for line in lines]
            code = await process.exit_code()
    finally:
        await asyncio.shield(process.close(0.0))
    return code, "\n".join(printed or process.stderr_tail())
