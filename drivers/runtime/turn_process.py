"""The driver and the agent of a CLI that runs one process a turn and resumes its session by an id, as `opencode run` does."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from drivers.contract.agent import Agent, ProcessUse, Prompt, Reply
from drivers.contract.agent_specs import Limits, SessionSpec, TaskSpec
from drivers.contract.codec import Codec, Launch
from drivers.contract.driver_info import ToolGrant
from drivers.contract.errors import AgentGone, AgentUnavailable, DriverError, ResumeFailed
from drivers.contract.events import Error, OutputEvent, SessionEnd
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.cli_driver import Driver, check_seed, with_tool_server
from drivers.runtime.file_threads import in_thread
from drivers.runtime.process import Spawner


class TurnProcessDriver(Driver):
    """A driver of a CLI that exits after each turn. Between turns its agent is alive without a process.

    `tools_by_mcp`: a session that has application-side tools gets a `tool_server` in each turn, for the CLI to call.
    """

    tools_by_mcp: ClassVar[bool] = False

    @abstractmethod
    def turn(self, spec: SessionSpec, prompt: Prompt) -> Launch:
        """The process that answers this prompt, and a fresh codec for its output.

        With `spec.seed.resume` it resumes the native session of that id; otherwise it starts one, with `spec.seed.history` if
        `info()` declares `seeds`. The prompt goes to standard input or into a file, never in the arguments.
        """

    async def has_session(self, spec: SessionSpec, spawner: Spawner) -> bool:
        """Whether the CLI still has the native session `spec.seed.resume`. If not, a fresh one is seeded with the history.

        It is asked when an agent is opened, which is also before the turn after a crash. By default the session is taken to be
        there. Override it by a look at the CLI's files, or by a command that lists its sessions.
        """
        return True

    def task_tools(self, spec: TaskSpec) -> tuple[ToolGrant, ...]:
        """The tools that a task of `/v1/execute` may use; by default none, since a task has no client to ask for permission."""
        return ()

    async def open(self, spec: SessionSpec, spawner: Spawner, limits: Limits) -> Agent:
        await self._check_start(spec, spawner)
        if spec.seed.resume is not None and not await self._finds_session(spec, spawner):
            raise ResumeFailed(f"{self.info().title} has no session {spec.seed.resume!r} any more")
        check_seed(self.info(), spec)
        return TurnProcessAgent(self, spec, spawner, limits)

    async def execute(self, spec: TaskSpec, spawner: Spawner, limits: Limits) -> Agent:
        options = {**spec.options, **({"model": spec.model} if spec.model else {})}
        session = SessionSpec(
            spec.program, spec.cwd, spec.env, spec.args, options, spec.state, tools=self.task_tools(spec)
        )  # fmt: skip
        return await CliAgent.start(self.turn(session, Prompt(spec.task)), spawner, limits)

    async def _finds_session(self, spec: SessionSpec, spawner: Spawner) -> bool:
        try:
            return await self.has_session(spec, spawner)
        except TimeoutError as error:
            raise AgentUnavailable(
                f"{spec.program} does not report in time whether it has session {spec.seed.resume!r}"
            ) from error

    async def _check_start(self, spec: SessionSpec, spawner: Spawner) -> None:
        """Raises AgentUnavailable for what would fail the first turn's start."""
        if not await in_thread(spec.cwd.is_dir):
            raise AgentUnavailable(f"the working folder {spec.cwd} is not there; make it, or set the agent's cwd to one that is")
        if self.info().program.name is None:
            return
        if not await in_thread(spawner.finds, spec.program, spec.env.get("PATH")):
            raise AgentUnavailable(f"the program {spec.program!r} is not there or not executable")


class TurnProcessAgent(Agent):
    """A native session that has a process only while a turn is under way.

    It resumes the native session in each turn after the first. It is not alive any more after a turn that may have lost the
    native session: the agent that is opened next asks the driver for it. Without a native id it is alive, unless a fresh session
    could be seeded with the history.
    """

    def __init__(self, driver: TurnProcessDriver, spec: SessionSpec, spawner: Spawner, limits: Limits) -> None:
        self._driver, self._spec, self._spawner, self._limits = driver, spec, spawner, limits
        self._seeds = driver.info().capabilities.seeds
        self._codec: Codec | None = None
        self._turn: CliAgent | None = None
        self._ready: list[OutputEvent] = []
        self._alive = True
        self.native_id = spec.seed.resume

    @property
    def alive(self) -> bool:
        return self._alive

    async def process_use(self) -> ProcessUse | None:
        return None if self._turn is None else await self._turn.process_use()

    async def prompt(self, prompt: Prompt) -> None:
        if not self._alive:
            raise AgentGone("the agent was closed, or its native session is not whole")
        if self._turn is not None:
            raise DriverError("a turn is under way; read its events up to its session_end")
        spec = (
            self._spec
            if self.native_id is None
            else replace(self._spec, seed=replace(self._spec.seed, resume=self.native_id, history=()))
        )
        try:
            turn = await self._start(spec, prompt)
        except DriverError as error:
            end = SessionEnd(exit_code=1, stop_reason="error")
            self._ready = [Error(message=str(error)), end]
            self._turn_over(end, opened=False)
            return
        if not self._alive:
            await turn.close(0.0)
            raise AgentGone("the agent was closed while its process started")
        self._turn = turn

    async def receive(self) -> Sequence[OutputEvent]:
        if self._ready:
            events, self._ready = self._ready, []
            return events
        if self._turn is None:
            raise AgentGone("no turn is under way")
        received = await self._turn.receive()
        self.native_id = self._turn.native_id or self.native_id
        if received and isinstance(received[-1], SessionEnd):
            self._turn_over(received[-1], opened=self._turn.native_id is not None)
        return received

    async def reply(self, reply: Reply) -> None:
        if self._turn is not None:
            await self._turn.reply(reply)

    async def steer(self, prompt: Prompt) -> bool:
        return self._turn is not None and await self._turn.steer(prompt)

    async def interrupt(self, grace: float | None = None) -> None:
        if self._turn is not None:
            await self._turn.interrupt(grace)

    async def close(self, grace: float | None = None) -> None:
        self._alive = False
        if self._turn is not None:
            await self._turn.close(grace)

    async def _start(self, spec: SessionSpec, prompt: Prompt) -> CliAgent:
        self._codec = None
        if self._driver.tools_by_mcp and spec.app_tools:
            spec = await with_tool_server(spec, self._driver.info().mcp.call_id_keys)
        try:
            launch = self._driver.turn(spec, prompt)
            self._codec = launch.codec
            return await CliAgent.start(launch, self._spawner, self._limits, spec.services, spec.tool_server)
        except BaseException:
            if spec.tool_server is not None:
                await asyncio.shield(spec.tool_server.close())
            raise

    def _turn_over(self, end: SessionEnd, *, opened: bool) -> None:
        """Record the end of a turn. `opened`: its process has reported the native session."""
        self._turn = None
        reported = self._codec is not None and self._codec.run_result is not None
        lost = end.stop_reason == "error" and not (reported and opened)
        if self._seeds if self.native_id is None else lost:
            self._alive = False
