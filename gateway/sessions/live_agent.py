"""LiveAgent: the agent process of a session. It is started, resumed or seeded when needed, kept between turns, and ended.

It knows nothing of the states of the session, but those of the process (`Process`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path

from drivers.contract.agent import Agent, DeniedCall
from drivers.contract.agent_specs import SessionPermissions, SessionSeed, SessionSpec
from drivers.contract.client_services import ClientServices
from drivers.contract.driver_info import ASK_MODE, MODE_OPTION
from drivers.contract.errors import DriverError, ResumeFailed
from drivers.contract.mcp_servers import McpServer
from drivers.contract.messages import Message, SystemMessage
from gateway.agents.client_mcp_servers import allowed_servers
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.agents.folder_access import FOLDER_OF_SESSION, in_time
from gateway.errors import AgentProblem
from gateway.events.event_log import RETRY
from gateway.observability.audit import log_decisions
from gateway.policy.decision_record import Decision
from gateway.runs.answer_format import AnswerFormat, FormattedAgent
from gateway.runs.cancellation import completed
from gateway.runs.shared_services import SharedServices
from gateway.security.redaction import Redactor
from gateway.sessions.settings import SessionSettings, with_mode_option

log = logging.getLogger(__name__)

STORE_TIMEOUT = 1.0
"""Seconds that the start or the end of an agent waits for its native id to be stored."""


class Process(Enum):
    """What a session has of its agent. LiveAgent alone changes it."""

    NONE = "none"
    """No process."""
    PREPARING = "preparing"
    """One is being started ahead of its first prompt, while the session's lock is free."""
    UNUSED = "unused"
    """It is ready and had no prompt. Its native id is not stored: CLIs do not resume a session without messages."""
    USED = "used"
    """It has had a prompt, or was started for one."""
    SPENT = "spent"
    """It gets no prompt any more, and its native session is not resumed: that may not have what the history has."""


class LiveAgent:
    """`current` is the process, if there is one. The methods are called under the session's lock. `redactor` is the session's.

    `became_stored` is called when `stored` has become true. `owner` is the name of the session's key, None for a default key.
    """

    def __init__(
        self,
        session_id: str,
        agent: ConfiguredAgent,
        native_id: str | None,
        shared: SharedServices,
        redactor: Redactor,
        services: ClientServices,
        became_stored: Callable[[], None],
        owner: str | None = None,
    ) -> None:
        self.current: FormattedAgent | None = None
        self.process = Process.NONE
        self._settings: SessionSettings | None = None
        self._announced: frozenset[str] = frozenset()
        self._session_id, self._agent, self._shared, self._services = session_id, agent, shared, services
        self._owner = owner
        self._native_id, self._became_stored, self._redactor = native_id, became_stored, redactor
        self._metrics = shared.metrics.for_agent(agent.name)
        self._started_before = native_id is not None
        self.process_started = asyncio.Event()
        """Set once a process has been started, which may not be ready for a prompt."""
        spawner = shared.spawner.with_callback(self.process_started.set)
        self._spawner = shared.transcripts.spawner(spawner, session_id, agent, redactor)
        self._unstored = self._closed = False
        self._storing: asyncio.Task[None] | None = None
        self._unaudited: list[Decision] = []
        self._auditing: asyncio.Task[None] | None = None
        self._preparation: asyncio.Task[Agent] | None = None

    @property
    def exists(self) -> bool:
        """Whether there is a process, or one is being started ahead of its first prompt."""
        return self.process is not Process.NONE

    @property
    def is_all_there_is(self) -> bool:
        """Whether nothing but a text would be left without this process: the agent resumes no session, and cannot be seeded."""
        return self.current is not None and not (self.current.resumable or self._agent.info.capabilities.seeds)

    @property
    def stored(self) -> bool:
        """Whether the store has the native id. A session loaded without it would resume a native session of another history."""
        return self._storing is None or self._storing.done()

    def ready(self, settings: SessionSettings) -> Agent | None:
        """The process, where it can take a prompt as it is: it lives, and was started with these settings and client services."""
        if self.current is None or not self.current.alive or self.process is Process.SPENT:
            return None
        same = self._settings == self._of_process(settings) and self._announced == self._client_services
        return self.current if same else None

    def _of_process(self, settings: SessionSettings) -> SessionSettings:
        """The settings that a process is started with, with the schema of answers only if its CLI takes that at its start."""
        schema = settings.answer.schema if settings.answer is not None else None
        if schema is not None and self._agent.driver.takes_schema(schema) == "with_session":
            return replace(settings, answer=AnswerFormat(schema))
        return settings if settings.answer is None else replace(settings, answer=None)

    def expect(self, expected: AnswerFormat | None) -> None:
        """The answers of the process have this format from now on."""
        if self.current is not None:
            self.current.expected = expected

    def prepare(self, settings: SessionSettings, history: Sequence[Message]) -> asyncio.Task[Agent]:
        """Begin to start a process as `start` does, for a prompt to come. There must be none; see `prepared`.

        The task raises AgentProblem. It is ended by whatever ends or starts a process.
        """
        task = asyncio.create_task(self._start(settings, history, resume=True))
        self._preparation, self.process = task, Process.PREPARING
        task.add_done_callback(self._preparation_over)
        return task

    def _preparation_over(self, task: asyncio.Task[Agent]) -> None:
        self._preparation, self.process = None, Process.UNUSED if self.current is not None else Process.NONE
        if not task.cancelled():
            # Also where no prompt waits for it: the next one starts a process again, and gets the reason then.
            task.exception()

    def preparing_for(self, settings: SessionSettings) -> bool:
        """Whether a process is being started that these settings need no other one for, unless it cannot change its mode."""
        if self._preparation is None or self._settings is None:
            return False
        mode = settings.options.get(MODE_OPTION, ASK_MODE)
        return self._of_process(settings) in (self._settings, with_mode_option(self._settings, mode))

    async def prepared(self) -> None:
        """Wait until the process that is being started is ready. Raises AgentProblem if it cannot start."""
        task = self._preparation
        if task is not None:
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def end_preparation(self) -> None:
        """End the process that is being started, if there is one."""
        task = self._preparation
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def use(self) -> None:
        """The process gets a prompt: its native session is worth resuming."""
        if self.process is Process.UNUSED:
            self.process = Process.USED
            self.record_native_id()

    async def change_mode(self, settings: SessionSettings) -> None:
        """Change the mode of the process to that of the settings, where nothing else differs and the CLI can do that."""
        if self.current is None or not self.current.alive or self._settings is None or self.process is Process.SPENT:
            return
        settings = self._of_process(settings)
        mode = settings.options.get(MODE_OPTION, ASK_MODE)
        if self._settings == settings or with_mode_option(self._settings, mode) != settings:
            return
        if await self.current.set_mode(mode):
            self._settings = settings

    def mode_changed(self, mode: str) -> None:
        """The process has changed its mode by itself."""
        if self._settings is not None:
            self._settings = with_mode_option(self._settings, mode)

    def with_its_mode(self, settings: SessionSettings) -> SessionSettings:
        """The settings with the mode of the process, where there is one."""
        mode = self._settings.options.get(MODE_OPTION) if self.current is not None and self._settings is not None else None
        return settings if mode in (None, settings.options.get(MODE_OPTION)) else with_mode_option(settings, mode)

    async def start(self, settings: SessionSettings, history: Sequence[Message], *, resume: bool) -> Agent:
        """A fresh process that resumes the CLI's own session, or is seeded with the history. Raises AgentProblem.

        An agent that cannot be seeded gets the history as text, with its first prompt.

        Without `resume`, and where the CLI does not resume its session, a fresh native session is seeded.
        """
        await self.end()
        await self.native_id_stored()
        agent = await self._start(settings, history, resume=resume)
        self.process = Process.USED
        self.record_native_id()
        await self.native_id_stored()
        return agent

    async def _start(self, settings: SessionSettings, history: Sequence[Message], *, resume: bool) -> Agent:
        self._settings, self._announced = self._of_process(settings), self._client_services
        if (worktree := settings.worktree) is not None:
            work = self._shared.worktrees.ensure(
                self._session_id,
                self._owner,
                self._agent.name,
                worktree,
                partial(self._agent.folder_without_worktree, settings.options, settings.workspace_key),
            )
            await completed(work)
        await self._shared.check_supported(self._agent)
        try:
            spec = await in_time(partial(self._spec, settings, history), FOLDER_OF_SESSION)
            self.current = await self._open(spec, resume)
            self.current.expected = settings.answer
        except DriverError as error:
            self._metrics.failed_to_start()
            raise AgentProblem(self._redactor.clean(self._agent.start_error(error))) from error
        return self.current

    async def end(self) -> None:
        """End the process, if there is one; what is needed to resume its session is kept."""
        await self.end_preparation()
        agent = self.current
        if agent is None:
            return
        self.record_native_id()
        # It stays the current one until it has ended: a caller that is cancelled, or a failure, must not lose the process.
        await agent.close()
        if self.current is agent:
            self.release()
        await self.native_id_stored()

    def release(self) -> None:
        """The process has ended."""
        self.current, self.process = None, Process.NONE

    def forget(self) -> None:
        """Do not resume the native session: its CLI may have kept less of the last run than the history has, or more.

        The next process is seeded, where the agent can be given a history. Any other agent has more in that session than in text.
        """
        if self.process is not Process.SPENT:
            if self._agent.info.capabilities.seeds:
                self._store_native_id(None)
            else:
                self.record_native_id()
            self.process = Process.NONE if self.current is None else Process.SPENT

    async def discard(self) -> None:
        """End the process at once, and do not resume its native session: it may have what the history does not have."""
        self.forget()
        agent = self.current
        if agent is not None:
            await agent.close(0.0)
            if self.current is agent:
                self.release()

    def record_native_id(self) -> None:
        """Store the native id as it is after a run: a CLI with one process a turn reports it in its first."""
        if self.process is not Process.USED:
            return
        if self.current is not None and self.current.native_id not in (None, self._native_id):
            self._store_native_id(self.current.native_id)

    async def native_id_stored(self) -> None:
        """Wait until the native id and the denied calls are stored, or STORE_TIMEOUT has passed: they are stored later then."""
        if storing := self._storing_tasks():
            await self._shared.clock.wait(storing, STORE_TIMEOUT)

    async def close(self) -> None:
        """Wait as `native_id_stored` does, and store nothing any more."""
        await self.native_id_stored()
        self.stop_storing()
        if storing := self._storing_tasks():
            await asyncio.wait(storing)

    def stop_storing(self) -> None:
        """Store nothing any more, from now on."""
        self._closed = True
        for task in self._storing_tasks():
            task.cancel()

    def _storing_tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._storing, self._auditing) if task is not None]

    def _call_denied(self, call: DeniedCall) -> None:
        """Log and audit a call that the process has made outside of a run, which its driver has denied."""
        self._unaudited.append(Decision("denied", "default", call.tool, call.call_id, call.input, call.reason))
        if not self._closed and (self._auditing is None or self._auditing.done()):
            self._auditing = asyncio.create_task(self._audit())

    async def _audit(self) -> None:
        while self._unaudited:
            decisions, self._unaudited = self._unaudited, []
            rows = self._shared.audit.records(self._session_id, "", self._agent.name, decisions)
            log_decisions(rows)
            while True:
                try:
                    await self._shared.store.audit.append(rows)
                    break
                except Exception as error:
                    log.warning("session %s: denied calls cannot be audited; trying again: %s", self._session_id, error)
                    await self._shared.clock.sleep(RETRY)

    def _store_native_id(self, native_id: str | None) -> None:
        self._native_id, self._unstored = native_id, True
        if self._closed:
            return
        if self._storing is None or self._storing.done():
            self._storing = asyncio.create_task(self._until_stored())
            self._storing.add_done_callback(lambda _: self._became_stored())

    async def _until_stored(self) -> None:
        while self._unstored:
            self._unstored = False
            try:
                await self._shared.store.sessions.update(self._session_id, native_id=self._native_id)
            except Exception as error:
                self._unstored = True
                log.warning("session %s: its native id cannot be stored; trying again: %s", self._session_id, error)
                await self._shared.clock.sleep(RETRY)

    async def _open(self, spec: SessionSpec, resume: bool) -> FormattedAgent:
        if self._native_id is not None and resume:
            try:
                return await self._launch(replace(spec, seed=SessionSeed(self._native_id, system=spec.seed.system)))
            except DriverError as error:
                # Also for another reason than that the native session is gone, which would be the same at every turn.
                if not (self._agent.info.capabilities.seeds or isinstance(error, ResumeFailed)):
                    raise
                log.warning(
                    "session %s: its native session is not resumed, a fresh one gets the history: %s", self._session_id, error
                )
        if self._agent.info.capabilities.seeds or not spec.seed.history:
            return await self._launch(spec)
        agent = await self._launch(replace(spec, seed=SessionSeed(system=spec.seed.system)))
        agent.untold = spec.seed.history
        return agent

    async def _launch(self, spec: SessionSpec) -> FormattedAgent:
        self._shared.program_starts(self._agent)
        spawner = await in_time(partial(self._agent.sandboxed, self._spawner, spec), FOLDER_OF_SESSION)
        opened = await self._agent.driver.open(spec, spawner, self._shared.limits)
        agent = FormattedAgent(opened, self._agent.driver.takes_schema, self._shared.clock)
        agent.watch_denials(self._call_denied)
        self._metrics.started(spec, again=self._started_before)
        self._started_before = True
        return agent

    @property
    def _client_services(self) -> frozenset[str]:
        """The services of the session's client, where the CLI must know them from its start."""
        return self._services.supported_methods() if self._agent.info.capabilities.asks_client else frozenset()

    def _allowed_mcp_servers(self, settings: SessionSettings) -> tuple[McpServer, ...]:
        """The client's MCP servers, without those that the configuration has not allowed since the client brought them."""
        allowed = allowed_servers(self._agent.settings, settings.mcp_servers)
        if len(allowed) < len(settings.mcp_servers):
            names = ", ".join(repr(server.name) for server in settings.mcp_servers if server not in allowed)
            log.warning("session %s: agents.%s.mcp does not allow its MCP servers %s", self._session_id, self._agent.name, names)
        return allowed

    def _spec(self, settings: SessionSettings, history: Sequence[Message]) -> SessionSpec:
        base = self._agent.spec({**settings.options, **settings.secrets}, settings.workspace_key)
        system = "\n\n".join(message.content for message in history if isinstance(message, SystemMessage))
        return SessionSpec(
            base.program,
            Path(settings.worktree.folder) if settings.worktree is not None else base.cwd,
            base.env,
            base.args,
            base.options,
            self._shared.states / self._session_id,
            base.confined,
            base.locked,
            seed=SessionSeed(
                history=tuple(message for message in history if not isinstance(message, SystemMessage)), system=system or None
            ),
            tools=self._agent.policy.effective_grants(settings.tools or ()),
            app_tools=settings.app_tools or (),
            mcp_servers=self._allowed_mcp_servers(settings),
            tool_host=self._shared.tool_host,
            services=self._services,
            additional_directories=self._agent.additional_directories(
                settings.additional_directories, settings.workspace_key, any_folder=True
            ),
            permissions=SessionPermissions(
                modes=frozenset(mode.id for mode in self._agent.modes),
                ruled=self._agent.policy.restricts_tool,
                lasting_choices=self._owner is None,
            ),
            output_schema=started_with.schema if (started_with := self._of_process(settings).answer) is not None else None,
        )
