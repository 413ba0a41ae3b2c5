"""The interface of a driver, and `CliDriver`: a driver for a program that writes lines, with two methods to implement."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from drivers.contract.agent import Agent
from drivers.contract.agent_specs import AgentSpec, Limits, SessionSpec, TaskSpec
from drivers.contract.codec import Command, Launch
from drivers.contract.driver_info import DriverInfo, PermissionMode, Probe, TakesSchema
from drivers.contract.errors import AgentUnavailable, DriverError
from drivers.contract.line_splitter import text_line
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.file_threads import TooManyAccesses, bounded
from drivers.runtime.process import Spawner

VERSION = re.compile(r"(?<!\d)\d+(?:\.\d+)+(?:[-+][0-9A-Za-z.-]+)?")
PROBE_SECONDS = 20.0
FILES_SECONDS = 10.0
"""The time limit for the files that a driver reads before it starts a process."""

Spec = TypeVar("Spec", bound=AgentSpec)


class Driver(ABC):
    """The code of one type of agent. It has no state: one instance serves all agents and sessions."""

    name: str

    @abstractmethod
    def info(self) -> DriverInfo:
        """What the driver can do. The result is constant and does not depend on the machine."""

    def permitted_modes(self, env: Mapping[str, str], *, confined: bool) -> tuple[PermissionMode, ...]:
        """The modes of the CLI that it permits with this environment, in the gateway's sandbox (`confined`) or without it."""
        return self.info().permissions.modes

    def options_problem(self, options: Mapping[str, str]) -> str | None:
        """Return what is wrong with the values of options, before a session gets them; None if nothing is. No file is read.

        Unknown options, and values that are not among the `choices`, are refused before.
        """
        return None

    def takes_schema(self, schema: Mapping[str, Any]) -> TakesSchema | None:
        """How the CLI takes this JSON schema of its answers; None if it does not, and the gateway puts it into the prompt."""
        return None

    async def probe(self, spec: AgentSpec, spawner: Spawner) -> Probe:
        """Find the program and its version: by default the first version number that `--version` prints.

        The gateway calls it with a fresh folder as `cwd`: another agent may have written settings in the working folder, which
        name programs. The output of each process is limited.
        """
        if self.info().program.name is None:
            return Probe(version=self.info().version)
        try:
            code, output = await run_to_end(Command((spec.program, "--version"), spec.cwd, spec.env, stdin=b""), spawner)
        except (DriverError, TimeoutError) as error:
            return Probe(problem=f"{spec.program} --version: {str(error) or 'no answer'}")
        found = VERSION.search(output)
        if code or not found:
            return Probe(problem=f"{spec.program} --version gave exit code {code} and no version: {output[:200]!r}")
        return Probe(version=found.group())

    def home_folders(self, spec: AgentSpec) -> tuple[Path, ...]:
        """The folders with the CLI's own settings, login and sessions, which it writes: in a sandbox they are writable.

        Those that are missing are created.
        """
        return ()

    def home_files(self, spec: AgentSpec) -> tuple[Path, ...]:
        """Files and folders of that kind that may be missing, and are not created."""
        return ()

    @abstractmethod
    async def open(self, spec: SessionSpec, spawner: Spawner, limits: Limits) -> Agent:
        """Start a native session that takes prompts. Raises AgentUnavailable or ResumeFailed."""

    @abstractmethod
    async def execute(self, spec: TaskSpec, spawner: Spawner, limits: Limits) -> Agent:
        """Start a task. Its events follow by `receive` until `session_end`. Raises AgentUnavailable."""


class CliDriver(Driver):
    """A driver whose agent is a process that writes one event a line.

    `tools_by_mcp`: a session that has application-side tools gets a `tool_server`, for the CLI to call.
    """

    tools_by_mcp: ClassVar[bool] = False

    @abstractmethod
    def session(self, spec: SessionSpec) -> Launch:
        """The process of a live session. Prompts and secrets never go in its arguments."""

    @abstractmethod
    def task(self, spec: TaskSpec) -> Launch:
        """The process of one task, with the task on its standard input."""

    async def open(self, spec: SessionSpec, spawner: Spawner, limits: Limits) -> Agent:
        check_seed(self.info(), spec)
        if self.tools_by_mcp and spec.app_tools:
            spec = await with_tool_server(spec, self.info().mcp.call_id_keys)
        try:
            return await CliAgent.start(await made(self.session, spec), spawner, limits, spec.services, spec.tool_server)
        except BaseException:
            if spec.tool_server is not None:
                await asyncio.shield(spec.tool_server.close())
            raise

    async def execute(self, spec: TaskSpec, spawner: Spawner, limits: Limits) -> Agent:
        return await CliAgent.start(await made(self.task, spec), spawner, limits)


def check_seed(info: DriverInfo, spec: SessionSpec) -> None:
    """Raise AgentUnavailable if a fresh native session is to continue a conversation that the CLI cannot be given."""
    if spec.seed.history and spec.seed.resume is None and not info.capabilities.seeds:
        raise AgentUnavailable("its own session is gone, and it cannot be given a history; start a new session")


async def made(launch: Callable[[Spec], Launch], spec: Spec) -> Launch:
    """Return the process of a spec: drivers read files of its folders for it. Raises AgentUnavailable if these do not answer."""
    try:
        return await bounded(partial(launch, spec), FILES_SECONDS)
    except TooManyAccesses as error:
        raise AgentUnavailable(f"the files of the agent cannot be read: {error.strerror}; try again later") from error
    except TimeoutError as error:
        raise AgentUnavailable(
            f"the file system of {spec.cwd} or of its own files has not answered within {FILES_SECONDS:g} s; try again later"
        ) from error


async def with_tool_server(spec: SessionSpec, call_id_keys: Sequence[str]) -> SessionSpec:
    """The spec with a server of its application-side tools, which the caller closes. Raises AgentUnavailable."""
    if spec.tool_host is None:
        raise AgentUnavailable("it calls application-side tools by MCP, and there is no MCP server here")
    return replace(spec, tool_server=await spec.tool_host(spec.app_tools, call_id_keys))


async def run_to_end(command: Command, spawner: Spawner, seconds: float = PROBE_SECONDS) -> tuple[int, str]:
    """Run a short command: its exit code and what it printed. Raises AgentUnavailable or TimeoutError."""
    process = await spawner.spawn(command)
    printed: list[str] = []
    try:
        async with spawner.clock.timeout(seconds):
            while lines := await process.read_lines():
                printed += [text_line(line) for line in lines]
            if process.failure is not None:
                raise AgentUnavailable(process.failure)
            code = await process.exit_code()
    finally:
        await asyncio.shield(process.close(0.0))
    return code, "\n".join(printed or process.stderr_tail())
