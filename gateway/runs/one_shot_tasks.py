"""One-shot tasks: one task, one run, one stream of events; with an idempotency key a repeated request does not run it again."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from drivers.contract.agent import Agent
from drivers.contract.agent_specs import AgentSpec, TaskSpec
from drivers.contract.errors import DriverError
from drivers.contract.events import Error, SessionEnd
from drivers.runtime.confined_files import discard_tree
from gateway.agents.configured_agents import Agents, ConfiguredAgent
from gateway.agents.folder_access import FOLDER_OF_AGENT, in_time
from gateway.errors import AgentProblem, ShuttingDown, StoreUnavailable
from gateway.events.event_log import REQUEST_TIMEOUT, RETRY, EventLog
from gateway.events.log_entries import decode
from gateway.events.turn_reader import Turn
from gateway.observability.logs import bind_session_id
from gateway.runs.admission_and_eviction import CLOSING, AdmissionControl
from gateway.runs.cancellation import all_ended, completed, unless_cancelled
from gateway.runs.idempotency import Idempotency, IdempotencyKey
from gateway.runs.run import Run
from gateway.runs.shared_services import SharedServices
from gateway.store import EXECUTION_PREFIX, KeyRecord, RunRecord, Store
from gateway.store.fencing import Lease

log = logging.getLogger(__name__)

INCOMPLETE = "the gateway was stopped before the end of this stream was stored"


@dataclass(frozen=True, slots=True)
class Task:
    """A task for an agent. `model` is the agent's default where it is None; `owner` is the name of the caller's API key."""

    agent: str
    task: str
    model: str | None = None
    owner: str | None = None


class RunningTask:
    """A task among those that hold slots: its agent lives as long as its turn, and is not evicted.

    `owner` is the name of the caller's API key, `agent` that of its agent.
    """

    busy = has_agent = True
    eviction_order = None

    def __init__(self, task_id: str, owner: str | None, agent: str, run: Run) -> None:
        self.id, self.owner, self.agent, self.run = task_id, owner, agent, run

    def evict(self) -> None: ...


class TaskRunner:
    """Runs tasks. A run goes on when the readers of its stream are gone. A node of a cluster has gateway.cluster.tasks."""

    def __init__(
        self,
        agents: Agents,
        shared: SharedServices,
        admission: AdmissionControl,
        idempotency: Idempotency,
    ) -> None:
        self._agents, self._shared, self._admission = agents, shared, admission
        self._idempotency = idempotency
        self._store, self._redactor, self._states = shared.store, shared.redactor, shared.states
        self._running: dict[str, RunningTask] = {}
        self._winding_up: set[asyncio.Task[None]] = set()
        self._starts: set[asyncio.Event] = set()
        self._openings: set[asyncio.Task[Agent]] = set()
        self._stop = asyncio.Event()

    async def execute(self, task: Task, key: IdempotencyKey | None = None) -> Turn:
        """The stream of a task's events, from its first.

        Raises BadRequest, Conflict, TooMany, ShuttingDown, AgentProblem, and SessionElsewhere if the task is another node's.
        """
        self._admission.refuse_if_closing()
        return await self._idempotency.once(key, lambda: self._start(task, key), self._again)

    @property
    def tasks(self) -> list[RunningTask]:
        """The tasks that are under way."""
        return list(self._running.values())

    @property
    def running(self) -> list[Run]:
        """The runs that are under way."""
        return [task.run for task in self._running.values()]

    async def close(self, why: str) -> None:
        """End every run with this error; nothing new is started. A task whose agent is being started is refused."""
        self._admission.close()
        self._stop.set()
        for opening in self._openings:
            opening.cancel()
        await all_ended([*(run.fail(why) for run in self.running), *(over.wait() for over in self._starts)])
        # Also those that were being stored just now.
        runs = self.running
        await all_ended(run.fail(why) for run in runs)
        await all_ended(self._winding_up)
        for run in runs:
            run.log.close()

    def end_unstored(self, why: str) -> None:
        """End the runs that `close` cannot end, for their readers only."""
        for run in self.running:
            run.end_unstored(why)
            run.log.close()

    async def _again(self, known: KeyRecord) -> Turn:
        task_id = known.log_id
        bind_session_id(task_id)
        running = self._running.get(task_id)
        if running is not None:
            return Turn(running.run.log, 0, through_waits=True)
        return await self._ended(task_id, self._store)

    async def _ended(self, task_id: str, store: Store) -> Turn:
        """The stream of a task that does not run."""
        log = EventLog(task_id, store, await store.events.last_seq(task_id), clock=self._shared.clock)
        if not await self._has_end(log):
            # The daemon was killed after the run was over, and before its last events were on disk.
            log.append([Error(message=INCOMPLETE), SessionEnd(exit_code=1, stop_reason="error")])
            await log.written(REQUEST_TIMEOUT)
        return Turn(log, 0, through_waits=True)

    async def _has_end(self, log: EventLog) -> bool:
        rows = await self._store.events.read(log.log_id, log.last - 1, rows=1)
        return bool(rows) and isinstance(decode(rows[0][1].rsplit(b"\n", 1)[-1]), SessionEnd)

    async def _start(self, task: Task, key: IdempotencyKey | None) -> Turn:
        await self._place(task.agent)
        entry = self._agents.get(task.agent)
        entry.check_one_shot()
        if task.model is not None:
            entry.check_locked({"model": task.model})
        await self._shared.check_supported(entry)
        base = await in_time(partial(entry.spec, {}, entry.workspace_key(task.owner)), FOLDER_OF_AGENT)
        task_id = f"{EXECUTION_PREFIX}{uuid.uuid4().hex}"
        bind_session_id(task_id)
        over = asyncio.Event()
        self._starts.add(over)
        try:
            async with self._admission.turn(task_id, task.owner, new_agent=True):
                return await self._begin(task, key, task_id, entry, base)
        finally:
            self._starts.discard(over)
            over.set()

    async def _begin(
        self,
        task: Task,
        key: IdempotencyKey | None,
        task_id: str,
        entry: ConfiguredAgent,
        base: AgentSpec,
    ) -> Turn:
        metrics = self._shared.metrics.for_agent(entry.name)
        state = self._states / task_id
        spec = TaskSpec(
            base.program,
            base.cwd,
            base.env,
            base.args,
            base.options,
            state,
            base.confined,
            base.locked,
            task=task.task,
            model=task.model,
        )
        record = RunRecord(f"run_{uuid.uuid4().hex}", task_id, "running", None, 1)
        # Before the agent starts, which has the task then: a task that is refused, or repeated after a kill, is not run twice.
        lease = await self._store_start(record, key.record(task_id, record.first_seq) if key else None)
        store = self._store if lease is None else self._store.fenced(lease)
        log = EventLog(task_id, store, stored_first=self._shared.stored_first, clock=self._shared.clock)
        try:
            self._shared.program_starts(entry)
            recorded = self._shared.transcripts.spawner(self._shared.spawner, task_id, entry)
            spawner = await in_time(partial(entry.sandboxed, recorded, spec), FOLDER_OF_AGENT)
            agent = await self._opened(entry.driver.execute(spec, spawner, self._shared.limits))
        except DriverError as error:
            metrics.failed_to_start()
            await completed(self._discard(task_id, store, lease))
            raise AgentProblem(self._redactor.clean(entry.start_error(error))) from error
        except BaseException:
            await completed(self._discard(task_id, store, lease))
            raise
        metrics.started(spec)
        meter = metrics.run_metrics(session=False)
        run = Run(record, agent, log, store, self._redactor, meter=meter, lease=lease)
        running = RunningTask(task_id, task.owner, entry.name, run)
        self._running[task_id] = running
        self._admission.add(task_id, running)
        run.start()
        if lease is not None:
            lease.on_lost = partial(self._lost, run)
        winding_up = asyncio.create_task(self._wind_up(task_id, run, agent, lease))
        self._winding_up.add(winding_up)
        winding_up.add_done_callback(self._winding_up.discard)
        return Turn(log, 0, through_waits=True)

    async def _opened(self, work: Coroutine[Any, Any, Agent]) -> Agent:
        """The agent that is started. `close` ends the start. Raises ShuttingDown then."""
        opening = asyncio.create_task(work)
        self._openings.add(opening)
        try:
            if self._stop.is_set():
                opening.cancel()
            agent = await unless_cancelled(opening)
        finally:
            self._openings.discard(opening)
        if agent is None:
            raise ShuttingDown(CLOSING)
        return agent

    async def _store_start(self, record: RunRecord, key: KeyRecord | None) -> Lease | None:
        """Store a run that starts now, with its key, and on a node of a cluster with the lease of its log, which is returned."""
        await self._store.runs.start(record, key=key)
        return None

    async def _place(self, agent: str) -> None:
        """Raise SessionElsewhere if another node of a cluster is to run a task of this agent."""

    def _lost(self, run: Run) -> None:
        """Another node has taken over a task, and stores its end. Its readers here get LeaseLost."""
        self._running.pop(run.log.log_id, None)
        run.log.lose()
        run.lose()

    async def _discard(self, task_id: str, store: Store, lease: Lease | None) -> None:
        """Forget a task whose agent did not start, with its key: the request can be repeated."""
        try:
            await store.runs.discard_execution(task_id)
            if lease is not None:
                lease.end_with_log()
        except StoreUnavailable:
            log.exception("task %s, whose agent did not start, stays in the store until the next start", task_id)
        await self._remove_folder(task_id)

    async def _wind_up(self, task_id: str, run: Run, agent: Agent, lease: Lease | None) -> None:
        try:
            await run.wait()
            await agent.close()
        except Exception:
            # A failure of the agent to close does not keep its task running.
            log.exception("the agent of task %s cannot be closed", task_id)
        finally:
            self._admission.remove(task_id)
        await self._remove_folder(task_id)
        # Only what is on disk can be read without the run.
        while not (lease is not None and lease.lost) and not await run.log.written(stop=self._stop):
            if self._stop.is_set():
                # `close` closes the log.
                return
            log.warning("the end of task %s is not stored yet", task_id)
            await self._shared.clock.sleep(RETRY)
        self._running.pop(task_id, None)
        if lease is not None:
            await lease.release()

    async def _remove_folder(self, task_id: str) -> None:
        await asyncio.to_thread(discard_tree, self._states / task_id)


def remove_task_folders(states: Path) -> None:
    """Remove the folders of tasks that a killed daemon left behind."""
    for folder in states.glob(f"{EXECUTION_PREFIX}*"):
        discard_tree(folder)
