"""Executions: one task, one run, one stream; with an idempotency key it runs once, however often it is asked for."""

from __future__ import annotations

import asyncio
import logging
import shutil
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivers.contract.agent import Agent
from drivers.contract.errors import DriverError
from drivers.contract.events import Error, SessionEnd
from drivers.contract.specs import AgentSpec, TaskSpec
from gateway.agents.configured import Agents, ConfiguredAgent
from gateway.errors import AgentProblem, ShuttingDown
from gateway.events.event_log import EventLog
from gateway.events.log_entries import decode
from gateway.events.turn import Turn
from gateway.observability.logs import bind_session_id
from gateway.runs.admission import AdmissionControl
from gateway.runs.idempotency import Idempotency, IdempotencyKey
from gateway.runs.run import Run
from gateway.services import SharedServices
from gateway.store import EXECUTION_PREFIX, KeyRecord, RunRecord

log = logging.getLogger(__name__)

CUT = "the gateway was stopped before the end of this stream was stored"


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked for: a task for an agent, perhaps with a model; and the name of the key that asks."""

    agent: str
    task: str
    model: str | None = None
    owner: str | None = None


class TaskRunner:
    """Runs tasks. The runs go on without their listeners."""

    def __init__(self, agents: Agents, shared: SharedServices, admission: AdmissionControl, idempotency: Idempotency) -> None:
        self._agents, self._shared, self._admission = agents, shared, admission
        self._idempotency = idempotency
        self._store, self._redactor, self._states = shared.store, shared.redactor, shared.states
        self._running: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    async def execute(self, task: Task, ask: IdempotencyKey | None = None) -> Turn:
        """The stream of a task's events, from its first. Raises BadRequest, Conflict, TooMany, AgentProblem."""
        if self._closing:
            raise ShuttingDown("the gateway is shutting down; try again when it is back")
        return await self._idempotency.once(ask, lambda: self._start(task, ask), self._again)

    @property
    def running(self) -> list[Run]:
        """The runs that are under way."""
        return list(self._running.values())

    async def close(self, why: str) -> None:
        """End every run with a clean error."""
        self._closing = True
        runs = list(self._running.values())
        await asyncio.gather(*(run.fail(why) for run in runs))
        await asyncio.gather(*self._tasks)

    async def _again(self, known: KeyRecord) -> Turn:
        execution_id = known.log_id
        bind_session_id(execution_id)
        running = self._running.get(execution_id)
        if running is not None:
            return Turn(running.log, 0, through_waits=True)
        log = EventLog(execution_id, self._store, await self._store.events.last_seq(execution_id))
        if not await self._has_end(log):
            # The daemon was killed after the run was over, and before its last events were on disk.
            log.append([Error(message=CUT), SessionEnd(exit_code=1, stop_reason="error")])
            await log.written()
        return Turn(log, 0, through_waits=True)

    async def _has_end(self, log: EventLog) -> bool:
        rows = await self._store.events.read(log.log_id, log.last - 1, rows=1)
        return bool(rows) and isinstance(decode(rows[0][1].rsplit(b"\n", 1)[-1]), SessionEnd)

    async def _start(self, task: Task, ask: IdempotencyKey | None) -> Turn:
        entry = self._agents.get(task.agent)
        entry.check_one_shot()
        base = entry.spec({})
        execution_id = f"{EXECUTION_PREFIX}{uuid.uuid4().hex}"
        bind_session_id(execution_id)
        with self._admission.turn(execution_id, task.owner):
            self._admission.take_agent(execution_id)
            return await self._begin(task, ask, execution_id, entry, base)

    async def _begin(
        self, task: Task, ask: IdempotencyKey | None, execution_id: str, entry: ConfiguredAgent, base: AgentSpec
    ) -> Turn:
        figures = self._shared.metrics.for_agent(entry.name)
        state = self._states / execution_id
        spec = TaskSpec(base.program, base.cwd, base.env, base.args, base.options, state, task=task.task, model=task.model)
        try:
            spawner = self._shared.transcripts.spawner(self._shared.spawner, execution_id, entry)
            agent = await entry.driver.execute(spec, spawner, self._shared.limits)
        except DriverError as error:
            figures.failed_to_start()
            await self._forget(execution_id)
            raise AgentProblem(self._redactor.clean(f"agent {entry.name!r} cannot start: {error}")) from error
        figures.started(spec)
        log = EventLog(execution_id, self._store)
        record = RunRecord(f"run_{uuid.uuid4().hex}", execution_id, "running", None, log.last + 1)
        run = Run(record, agent, log, self._store, self._redactor, meter=figures.run_metrics(session=False))
        try:
            await self._store.runs.start(record, key=ask.record(execution_id, record.first_seq) if ask else None)
        except BaseException:
            await agent.close()
            await self._forget(execution_id)
            raise
        self._running[execution_id] = run
        self._admission.task_began(execution_id, task.owner)
        run.start()
        self._track(self._wind_up(execution_id, run, agent))
        return Turn(log, 0, through_waits=True)

    async def _wind_up(self, execution_id: str, run: Run, agent: Agent) -> None:
        try:
            await run.wait()
            await agent.close()
        except Exception:
            # The agent's own trouble: the task is over all the same.
            log.exception("the agent of task %s cannot be closed", execution_id)
        finally:
            self._admission.task_ended(execution_id)
        await self._forget(execution_id)
        # Only what is on disk can be read without the run.
        await run.log.written()
        self._running.pop(execution_id, None)

    async def _forget(self, execution_id: str) -> None:
        await asyncio.to_thread(shutil.rmtree, self._states / execution_id, ignore_errors=True)

    def _track(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def remove_task_folders(states: Path) -> None:
    """Remove the folders of tasks that a killed daemon left behind."""
    for folder in states.glob(f"{EXECUTION_PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)
