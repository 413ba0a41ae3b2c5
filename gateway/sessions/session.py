"""Session: one conversation with one agent. Its settings, its history, its live agent, and one run at a time.

`submit` is the one way in which a turn begins, for every protocol. What is permitted in which state is in
gateway/sessions/machine.py; this module knows all states.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from drivers.contract.agent import GO_ON, Agent, PermissionReply, Prompt, Reply
from drivers.contract.client_services import ClientServices
from drivers.contract.driver_info import ASK_MODE, MODE_OPTION
from drivers.contract.errors import AgentGone, InputFull
from drivers.contract.events import Commands, SessionEnd, ToolCall
from drivers.contract.messages import Message, ToolMessage, ToolUseBlock, UserMessage
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.agents.folder_access import FOLDER_OF_SESSION, in_time
from gateway.errors import (
    AgentProblem,
    BadRequest,
    Conflict,
    GatewayError,
    LeaseLost,
    NotFound,
    ShuttingDown,
    StoreUnavailable,
    TooMany,
)
from gateway.events.event_log import EventLog
from gateway.events.log_entries import ClientPermission, LogEvent, TurnStart
from gateway.events.messages import message_row
from gateway.events.turn_reader import Turn
from gateway.observability.logs import bind_session_id
from gateway.policy.decision_record import CLIENT, TIME_LIMIT
from gateway.policy.enforcement import PolicyEnforcer
from gateway.policy.paths import PathResolver
from gateway.runs.admission_and_eviction import AdmissionControl, EvictionOrder
from gateway.runs.answer_format import AnswerFormat
from gateway.runs.cancellation import completed, unless_cancelled
from gateway.runs.idempotency import IdempotencyKey
from gateway.runs.pending_calls import PendingCalls, Resolution, client_results, ids, pending_in, resolve, unanswered
from gateway.runs.recovery import waiting_messages
from gateway.runs.run import Run, RunEvent, RunState
from gateway.runs.session_metadata import store_metadata
from gateway.runs.shared_services import SharedServices
from gateway.runs.stored_history import StoredHistory
from gateway.security.redaction import Redactor
from gateway.sessions.client_service_routing import SessionServices
from gateway.sessions.live_agent import LiveAgent
from gateway.sessions.machine import PUBLIC, Command, Machine, PublicState, State
from gateway.sessions.message_queue import CANCELLED, STOP_TIMEOUT, MessageQueue, QueuedMessage
from gateway.sessions.pending_call import PendingCall
from gateway.sessions.permission_choices import choices_of
from gateway.sessions.settings import SessionSettings, with_mode_option
from gateway.store import RunRecord, SessionRecord, SettingsRecord, Store
from gateway.store.fencing import Lease

log = logging.getLogger(__name__)

CANCEL_GRACE = 0.6
"""Seconds that an agent has to end a run on request; then it is killed, and the native session resumed at the next turn."""
STORE_WAIT = 1.0
"""Seconds that a shutdown waits for a request that is changing the session: for its writes, not for the start of an agent."""

WhenBusy = Literal["refuse", "steer", "queue"]
Result = TypeVar("Result")


async def never() -> None:
    """Return never: the client stays connected."""
    await asyncio.Event().wait()


def ignore(turn: Turn) -> None:
    """For clients that need not know of the turn before `submit` returns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What a client submits: a user message, or (without one) the replies to all pending calls.

    `settings` gives the session's new settings from those in force and raises BadRequest where they cannot be; None keeps
    them. `services` are what the client does for the agent while the run lasts. A message that finds a run at work is refused,
    sent to the agent at work (`steer`), or queued. A message that finds pending calls cancels them, or with
    `cancel_pending=False` is refused. `run_id` is the run whose calls were answered, where the client knows it. `began` is called
    with the turn before a reader of the log can see its first event. With `cancel_on_disconnect` the message is tied to its
    connection: if `disconnected` returns before its agent has the prompt, the turn is cancelled, or the message leaves the queue.
    Without it, a queued message is stored, and begins also if its client is gone. `queued` is the id of a queued message.
    `answer` is what the answer to a message has to be.
    """

    message: UserMessage | None = None
    replies: Sequence[Reply] = ()
    settings: Callable[[SessionSettings], SessionSettings] | None = None
    key: IdempotencyKey | None = None
    services: ClientServices | None = None
    when_busy: WhenBusy = "refuse"
    cancel_pending: bool = True
    disconnected: Callable[[], Awaitable[None]] = never
    cancel_on_disconnect: bool = False
    began: Callable[[Turn], None] = ignore
    run_id: str | None = None
    answer: AnswerFormat | None = None
    queued: str | None = None


@dataclass(eq=False, slots=True)
class _Start:
    """What a request has until the agent has its prompt: whether the turn is cancelled, whether it has ended by that, and the
    work that is ended then."""

    cancelled: bool = False
    ended: bool = False
    work: asyncio.Task[Any] | None = None

    def cancel(self) -> None:
        """Cancel the turn. It is stored, as that of a message whose run was cancelled, and no agent gets the prompt."""
        self.cancelled = True
        self.interrupt()

    def interrupt(self) -> None:
        if self.work is not None:
            self.work.cancel()


class Session:
    """Made and found by `Sessions`.

    What changes it happens under its lock, one request after the other. `submit` and `cancel` take the lock; the other methods
    that change something are called under it, except `prepare`. `changed` and `evict` are the registry's: the first is called
    whenever a run or the agent begins or ends, or the store has got all that it lacked; the second ends the agent in the
    background. `announce` is called when what a list has of the session is different.
    On a node of a cluster `lease` is the right to change it; the store of `shared` is fenced by that. It is None for a session
    of which this node only reads what is stored.
    The callbacks in `metadata_changed` are called when the agent has listed other slash commands outside of a run, or the user
    has changed the title.
    """

    def __init__(
        self,
        record: SessionRecord,
        config: SessionSettings,
        agent: ConfiguredAgent,
        shared: SharedServices,
        last_seq: int,
        redactor: Redactor,
        *,
        admission: AdmissionControl,
        changed: Callable[[Session], None],
        evict: Callable[[Session], None],
        announce: Callable[[Session], None],
        lease: Lease | None = None,
    ) -> None:
        self.lease, self.machine = lease, Machine()
        self.id, self.created_at, self.owner = record.id, record.created_at, record.owner
        self.forked_from = record.forked_from
        self.agent, self.config, self._stored_config, self.redactor = agent, config, config, redactor
        stored = partial(changed, self)
        self.log = EventLog(
            record.id,
            shared.store,
            last_seq,
            stored_first=shared.stored_first,
            all_written=stored,
            clock=shared.clock,
            lease=lease,
        )
        self.history = StoredHistory(shared.store, record.id)
        self.lock = asyncio.Lock()
        self.run: Run | None = None
        self.used_at = shared.clock.monotonic()
        self.turn_began = last_seq + 1
        self.services = SessionServices()
        self.queue = MessageQueue(
            record.id, shared, self.lock, free=self._is_free, begin=self._begin_queued, changed=self._queue_changed
        )
        self.evicting = False
        self.metadata_changed: set[Callable[[], None]] = set()
        self._storing_commands: set[asyncio.Task[None]] = set()
        self._storing_mode: asyncio.Task[None] | None = None
        self._starts: set[_Start] = set()
        self._agent = LiveAgent(record.id, agent, record.native_id, shared, redactor, self.services, stored, record.owner)
        self._shared, self._admission, self._changed, self._evict = shared, admission, changed, evict
        self._announce = announce

    # -- what it holds ----------------------------------------------------------------------------------------------------

    @property
    def live(self) -> Agent | None:
        """Its agent's process, if there is one."""
        return None if self._agent.current is None else self._agent.current.agent

    @property
    def busy(self) -> bool:
        return self.machine.of_run is State.RUNNING

    @property
    def state(self) -> PublicState:
        """`idle`, `running`, or `waiting` for the client: what clients see of the state of the machine."""
        return PUBLIC[self.machine.of_run]

    @property
    def deleted(self) -> bool:
        return isinstance(self.machine.gone, NotFound)

    @property
    def lost(self) -> bool:
        """Whether another node has the session."""
        return isinstance(self.machine.gone, LeaseLost)

    @property
    def pending_calls(self) -> list[PendingCall]:
        """The calls that wait for the client."""
        run = self.run
        if run is None or self.state != "waiting":
            return []
        titles = {tool.name: tool.title for tool in (*self.agent.info.tools, *(self.config.app_tools or ()))}
        found: list[PendingCall] = []
        for awaited in run.pending.calls.values():
            call = run.call(awaited.id)
            name, given = (call.name, call.input) if call is not None else ("", {})
            choices = choices_of(awaited, name, self.config)
            found.append(PendingCall(awaited.id, name, titles.get(name), given, awaited.wants, awaited.optional, choices))
        return found

    @property
    def waiting_since(self) -> float | None:
        """Since when it waits for the client, in seconds since the epoch; None if it does not wait."""
        return self.run.pending.since if self.run is not None and self.state == "waiting" else None

    @property
    def accepts_turn(self) -> bool:
        """Whether a turn can begin at once: no run is under way, no queued message begins, and nothing changes the session."""
        return self.state == "idle" and not self.queue.goes_on and not self.lock.locked()

    @property
    def only_stored(self) -> bool:
        """Whether it can be loaded again as it is: it is idle, has no agent, and the store has all of it."""
        stored = not self.log.unwritten and self._agent.stored and self.config == self._stored_config
        return not self._agent.exists and self.state == "idle" and stored and self.queue.at_rest

    @property
    def is_unused(self) -> bool:
        """Whether another process could have it: nothing is under way, it has no agent, and the store has all of it.

        A run that waits for the client goes on waiting there.
        """
        nothing_begins = self.queue.at_rest and not self.lock.locked() and not self._starts
        stored = not self.log.unwritten and self._agent.stored and self.config == self._stored_config
        return nothing_begins and stored and not self.busy and not self._agent.exists

    @property
    def has_agent(self) -> bool:
        return self._agent.exists and not self.evicting

    @property
    def eviction_order(self) -> EvictionOrder | None:
        """Idle agents go before those that wait for their client, each the one unused for the longest first.

        Agents whose sessions cannot be resumed go last.
        """
        if not self.has_agent or self.busy or self.lock.locked():
            return None
        return self._agent.is_all_there_is, self.state == "waiting", self.used_at

    @property
    def unused_seconds(self) -> float:
        """Seconds since the last use."""
        return self._shared.clock.monotonic() - self.used_at

    @property
    def store(self) -> Store:
        """The store for what belongs to this session. On a node of a cluster it takes writes only while the lease is held."""
        return self._shared.store

    def turn_from(self, seq: int) -> Turn:
        """The turn whose first event has this number."""
        return Turn(self.log, seq - 1)

    def announce(self) -> None:
        """What a list has of the session is different: clients that follow it are notified."""
        self._announce(self)

    def evict(self) -> None:
        """End the agent in the background, unless a turn begins first."""
        self._evict(self)

    # -- a request that begins a turn -------------------------------------------------------------------------------------

    async def submit(self, request: Submission) -> Turn:
        """Begin a turn: start a run on a user message, or continue the waiting run with the answers to its pending calls.

        Raises BadRequest, NotFound, Conflict, TooMany, ShuttingDown, StoreUnavailable or AgentProblem. A refused request changes
        nothing: the settings are as before, and calls that were pending are pending still. One exception: an agent that is ready
        and then ends when its pending calls are cancelled, or before it takes the prompt, and cannot be started again. The turn
        is stored by then, and has ended with an error.
        """
        # At once: the end of the agent has the lock.
        self.machine.require_here()
        if self.log.is_reserved and self._shared.store.in_doubt:
            # The lock is free when the store answers, however long that takes.
            raise StoreUnavailable("the store does not answer, and may have the request before this one; try again later")
        queued = self.queue.find(request.key) if request.key is not None else None
        if queued is not None:
            return await self.queue.turn(queued, request.disconnected)
        if request.message is not None and request.when_busy == "queue":
            return await self._submit_queued(request, request.message)
        # A cancel that comes while the lock is waited for is not later than the message.
        with self._beginning(request) as start:
            async with self.lock:
                if request.message is not None and request.when_busy == "steer" and self.machine.permits(Command.STEER):
                    return await self._steer(request, request.message)
                return await self._take(start, request)

    async def _submit_queued(self, request: Submission, message: UserMessage) -> Turn:
        """Begin a turn at once if the session is free, or put the message in the queue and wait for its turn."""
        if self.accepts_turn and (request.cancel_on_disconnect or self.queue.empty):
            with self._beginning(request) as start:
                async with self.lock:
                    # Whoever has waited for the lock before comes first.
                    if self._is_free() and not self.queue.goes_on:
                        return await self._take(start, request)
        return await self.queue.turn(await self._queued_message(request, message), request.disconnected)

    async def _queued_message(self, request: Submission, message: UserMessage) -> QueuedMessage:
        """The message of a request as the queue has it. The settings of one that is stored are checked now."""
        tied, changes = request.cancel_on_disconnect, None
        if request.settings is not None and not tied:
            before = self.config
            changes = (await in_time(partial(request.settings, before), FOLDER_OF_SESSION)).changes_from(before)
        if request.answer is not None:
            changes = replace(changes or SessionSettings(), answer=request.answer)
        return QueuedMessage(
            message=message,
            created_at=self._shared.clock.time(),
            stored=not tied,
            changes=changes,
            settings=request.settings if tied else None,
            key=request.key,
            services=request.services,
            disconnected=request.disconnected if tied else None,
            began=request.began,
        )

    async def enqueue(self, request: Submission) -> QueuedMessage:
        """Put the message of a request in the queue, and do not wait for its turn."""
        self.machine.require_here()
        if request.message is None:
            raise BadRequest("messages: only a user message can be queued")
        queued = self.queue.find(request.key) if request.key is not None else None
        if queued is None:
            queued = await self._queued_message(request, request.message)
            await self.queue.add(queued)
        return queued

    async def _begin_queued(self, queued: QueuedMessage) -> Turn:
        """Begin the turn of a queued message. Call it under the lock."""
        bind_session_id(self.id, self.redactor)
        request = Submission(
            message=queued.message,
            settings=queued.new_settings,
            key=queued.key,
            services=queued.services,
            answer=None if queued.changes is None else queued.changes.answer,
            disconnected=queued.disconnected or never,
            cancel_on_disconnect=queued.disconnected is not None,
            began=partial(self.queue.began, queued),
            queued=queued.id,
        )
        with self._beginning(request) as start:
            return await self._take(start, request)

    def _queue_changed(self) -> None:
        self._changed(self)
        self.announce()

    def _is_free(self) -> bool:
        """Whether a queued message can begin."""
        return self.state == "idle" and self.machine.gone is None

    async def _take(self, start: _Start, request: Submission) -> Turn:
        if self.lease is not None:
            await self.lease.confirm()
        await self._check(request)
        # A fresh agent gets the history from the store.
        await self.log.require_written()
        settings = self.config
        if request.settings is not None:
            settings = await in_time(partial(request.settings, settings), FOLDER_OF_SESSION)
        if request.message is not None and settings.answer != request.answer:
            settings = replace(settings, answer=request.answer)
        settings.require_secrets()
        self.redactor.register(settings.hidden)
        async with self._admitted():
            with self.machine.over(State.STARTING):
                if request.message is None:
                    return await self._answer(start, request, settings)
                return await self._begin(start, request, request.message, settings)

    async def _check(self, request: Submission) -> None:
        """Raises why the session is gone, or BadRequest or Conflict where it cannot take the request in its state."""
        self.machine.require_here()
        pending = self.run.pending if self.run is not None else PendingCalls()
        if request.message is None:
            answers = [reply.call_id for reply in request.replies]
            await self._refuse_repeated(answers, pending)
            if self.run is not None and not self.busy and request.run_id not in (None, self.run.id):
                raise BadRequest(f"{ids(answers)} is of a run that has ended")
            self.machine.require(Command.ANSWERS, ids(answers))
            return pending.check_answers(answers)
        self.machine.require(Command.MESSAGE)
        if self.state == "waiting" and not request.cancel_pending:
            raise Conflict(_waiting_text(pending))
        if request.queued is None and self.queue.goes_on and self.state == "idle":
            raise Conflict("other messages are queued for this session; send this again with when_busy: queue")

    async def _refuse_repeated(self, answers: Sequence[str], pending: PendingCalls) -> None:
        unknown = {call_id for call_id in answers if call_id not in pending.calls}
        if unknown:
            answered = pending.answered & unknown
            async for message in self.history.messages():
                if isinstance(message, ToolMessage) and message.tool_call_id in unknown:
                    answered.add(message.tool_call_id)
            if repeated := sorted(answered):
                raise BadRequest(
                    f"{ids(repeated)} is answered already; nothing was done twice. GET the session to see what came of it"
                )

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """Hold a slot for the turn, and one for an agent where there is none, until they count by themselves."""
        async with self._admission.turn(self.id, self.owner, new_agent=not self._agent.exists):
            try:
                yield
            finally:
                self._changed(self)
                self.announce()
                # A run that fails before its agent is read does not advance the queue.
                self.queue.advance()

    @contextmanager
    def _beginning(self, request: Submission) -> Iterator[_Start]:
        """Let `cancel`, `leave` and a client that disconnects interrupt what comes before the agent has its prompt."""
        start = _Start()
        self._starts.add(start)

        async def cancel_on_disconnect() -> None:
            await request.disconnected()
            start.cancel()

        watching = asyncio.create_task(cancel_on_disconnect()) if request.cancel_on_disconnect else None
        try:
            yield start
        finally:
            self._starts.discard(start)
            if watching is not None:
                watching.cancel()

    async def _interruptibly(self, start: _Start, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Do what takes long before the agent has its prompt. None where the turn is cancelled meanwhile.

        Raises why the session is gone, where that happens meanwhile.
        """
        start.work = task = asyncio.create_task(work)
        if start.cancelled or self.machine.gone is not None:
            start.interrupt()
        try:
            result = await unless_cancelled(task)
        finally:
            start.work = None
        if task.cancelled():
            self.machine.require_here()
        return result

    def _require_not_deleted(self) -> None:
        """A turn that is stored is not refused because of a shutdown, which ends its run."""
        if self.deleted:
            self.machine.require_here()

    # -- a message: a run begins ------------------------------------------------------------------------------------------

    async def _begin(self, start: _Start, request: Submission, message: UserMessage, settings: SessionSettings) -> Turn:
        """Start a run. The agent is ready before anything changes; pending calls are cancelled only then."""
        self.used_at = self._shared.clock.monotonic()
        client, self.services.client = self.services.client, request.services
        try:
            agent = await self._agent_to_prompt(start, settings)
            return await self._start_run(start, agent, message, request, settings)
        except BaseException:
            self.services.client = client
            raise

    async def _agent_to_prompt(self, start: _Start, settings: SessionSettings, *, prompted: int = 0) -> Agent | None:
        """The live agent, or a fresh one, resumed or seeded, where none has these settings. Raises AgentProblem.

        None where the turn is cancelled meanwhile. The last `prompted` messages of the history are not for the seed: they are the
        prompt, which the live agent has not taken.
        """
        if not prompted:
            if self._agent.preparing_for(settings):
                await self._interruptibly(start, self._agent.prepared())
            await self._agent.change_mode(settings)
        # An agent that has not taken it counts as alive until the event loop is notified of its exit.
        ready = None if prompted else self._agent.ready(settings)
        if ready is not None and not start.cancelled and self.machine.gone is None:
            self._agent.use()
            return ready
        return await self._interruptibly(start, self._fresh_agent(settings, prompted))

    async def _start_run(
        self, start: _Start, agent: Agent | None, message: UserMessage, request: Submission, settings: SessionSettings
    ) -> Turn:
        """Store the run, then prompt the agent: a prompt whose turn is refused is not given."""
        before = self.run
        waiting = before if self.state == "waiting" else None
        try:
            run = await completed(self._store_start(agent, message, request, waiting, settings))
            if waiting is not None:
                await self._end_prompt(start, waiting)
            self._require_not_deleted()
            if self.lease is not None:
                await self.lease.confirm()
            prompted = not start.cancelled and agent is not None and await _prompted(agent, message)
            if not prompted:
                # The process has ended between two turns, unnoticed; its native session is on disk.
                run.agent = await self._agent_to_prompt(start, self.config, prompted=1)
                if start.cancelled or run.agent is None:
                    return await self._end_cancelled(start, run, run.first_seq)
                await self._prompt_fresh(run.agent, Prompt(message.content))
        except BaseException:
            if self.run is not None and self.run is not before:
                await self._agent.discard()
                await self.run.fail("the agent did not take the prompt")
            raise
        self._start(run)
        return self.turn_from(run.first_seq)

    async def _store_start(
        self, agent: Agent | None, message: UserMessage, request: Submission, waiting: Run | None, settings: SessionSettings
    ) -> Run:
        """Store a run with its settings, and in the same transaction that it cancels the pending calls of a `waiting` one."""
        end = SessionEnd(exit_code=130, stop_reason="cancelled")
        last: list[LogEvent] = [*(await self._failed_calls()), end] if waiting is not None else []
        async with self.log.reserved(*last, TurnStart(messages=(message,))) as entries:
            if waiting is not None and waiting.state is not RunState.WAITING:
                raise Conflict("the run with the pending calls has just ended; send this again")
            begin = entries[-1]
            record = RunRecord(f"run_{uuid.uuid4().hex}", self.id, "running", None, begin.seq)
            cancelled = waiting.if_cancelled() if waiting is not None else []
            messages = [*(message_row(one, begin.seq - 1) for one in cancelled), message_row(message, begin.seq)]
            key = request.key.record(self.id, begin.seq) if request.key else None
            ended = waiting.id if waiting is not None else None
            row, new = self.log.row(entries), self._settings_record(settings)
            await self._shared.store.runs.start(record, messages, row, key, new, ended, request.queued)
            self._settings_stored(settings)
            if waiting is not None:
                waiting.cancelled_in_store(end)
            run = self.run = self._run(record, agent)
            self.machine.on(RunEvent.BEGAN)
            self.turn_began = begin.seq
            request.began(self.turn_from(begin.seq))
        return run

    async def _failed_calls(self) -> list[ToolCall]:
        calls = unanswered(await self.history.unanswered_calls()).values()
        return [ToolCall(id=call.tool_call_id, name=call.name, status="failed") for call in calls]

    async def _end_prompt(self, start: _Start, waiting: Run) -> None:
        """Let the agent of a run that was waiting end its prompt. If the turn is cancelled meanwhile, it has less time for it."""
        await self._interruptibly(start, waiting.end_prompt())
        if start.cancelled:
            await waiting.end_prompt(CANCEL_GRACE)

    async def _prompt_fresh(self, agent: Agent, prompt: Prompt) -> None:
        """Prompt an agent that was started for it. Raises AgentProblem if its process has ended since."""
        try:
            await agent.prompt(prompt)
        except AgentGone as error:
            raise AgentProblem(self.redactor.clean(self.agent.start_error(error))) from error

    async def _end_cancelled(self, start: _Start, run: Run, seq: int) -> Turn:
        """End a run that was cancelled before its agent got the prompt. The agent, if it has started, stays as it is."""
        run.agent = None
        with self.machine.over(State.ENDING):
            await run.cancel()
        start.ended = True
        return self.turn_from(seq)

    # -- answers: the run goes on -----------------------------------------------------------------------------------------

    async def _answer(self, start: _Start, request: Submission, settings: SessionSettings) -> Turn:
        """Continue the waiting run, with all its calls answered; with a fresh agent where its own has ended."""
        run = self.run
        if run is None:
            raise Conflict("no tool call is pending in this session")
        if run.suspended:
            return await self._resume(start, run, request, settings)
        return await self._pass_answers(run, request.replies, settings, request.key)

    async def _pass_answers(
        self,
        run: Run,
        replies: Sequence[Reply],
        settings: SessionSettings,
        key: IdempotencyKey | None = None,
        by: str = CLIENT,
    ) -> Turn:
        record, stored = self._settings_record(settings), partial(self._settings_stored, settings)
        self.turn_began = await completed(run.answer(replies, _answers(replies), key, record, by, stored))
        self.announce()
        return self.turn_from(self.turn_began)

    async def _resume(self, start: _Start, run: Run, request: Submission, settings: SessionSettings) -> Turn:
        """Continue a suspended run: a fresh agent gets the history with what became of the calls, and goes on from there."""
        await run.wait()
        resolution = resolve(await self.history.unanswered_calls(), run.pending.calls, request.replies)
        seed = [*await self.history.seed(), *client_results(request.replies), *resolution.results, *run.waiting_messages]
        try:
            agent = await self._interruptibly(start, self._start_agent(settings, seed, resume=False))
            answers, grants, record = _answers(request.replies), settings.tools or (), self._settings_record(settings)
            stored = partial(self._settings_stored, settings)
            resuming = run.resume(agent, grants, request.replies, resolution, answers, request.key, record, stored)
            self.turn_began = seq = await completed(resuming)
            self.announce()
            if start.cancelled or agent is None:
                # An agent that has started has the answers in its history, so that it cannot take another prompt.
                await self._agent.end()
                return await self._end_cancelled(start, run, seq)
            self._require_not_deleted()
            await self._prompt_fresh(agent, GO_ON)
        except BaseException:
            # Its history has the answers, so that it cannot take another prompt. The run waits still, unless they are stored.
            if self.live is not None:
                await self._agent.discard()
            if not run.suspended:
                await run.fail("the agent did not go on")
            raise
        self._start(run)
        return self.turn_from(seq)

    # -- a message to the agent at work -----------------------------------------------------------------------------------

    async def steer(self, message: UserMessage) -> bool:
        """Send a message to the agent at work. Returns False if none is at work, or it takes no message at this moment.

        Raises NotFound for a deleted session, and TooMany while the agent has not read or answered earlier messages.
        """
        async with self.lock:
            self.machine.require_here()
            if self.run is None or not self.machine.permits(Command.STEER) or not self.agent.info.capabilities.steers:
                return False
            return await completed(self._steer_run(self.run, message, None)) is not None

    async def _steer(self, request: Submission, message: UserMessage) -> Turn:
        """Send a message to the agent at work; the turn is the rest of its run's."""
        if request.settings is not None:
            raise BadRequest("when_busy: a run at work keeps its settings; leave agent and tools out to steer it")
        if not self.agent.info.capabilities.steers:
            raise BadRequest(f"when_busy: agent {self.agent.name!r} takes no messages while it works; use queue to wait for it")
        if request.key is not None and (known := self.log.unwritten_key(request.key.key)) is not None:
            # The store, in which a repeated request is looked up, does not have the first one yet.
            request.key.require_same(known)
            return self.turn_from(known.first_seq)
        seq = await completed(self._steer_run(self.run, message, request.key)) if self.run is not None else None
        if seq is None:
            raise Conflict("the run takes no message at this moment: it begins, ends or waits for a usage limit; send this again")
        return self.turn_from(seq)

    async def _steer_run(self, run: Run, message: UserMessage, key: IdempotencyKey | None) -> int | None:
        try:
            return await run.steer(message, key)
        except InputFull as error:
            raise TooMany(f"when_busy: {error}") from error

    # -- the run ----------------------------------------------------------------------------------------------------------

    def _run(self, record: RunRecord, agent: Agent | None) -> Run:
        shared = self._shared
        return Run(
            record,
            agent,
            self.log,
            shared.store,
            self.redactor,
            meter=shared.metrics.for_agent(self.agent.name).run_metrics(session=True),
            has_history=True,
            suspendable=True,
            enforcer=PolicyEnforcer(self.agent.policy, self.config.tools or (), self._path_resolver(), self._left_to_cli),
            audit=partial(shared.audit.records, self.id, record.id, self.agent.name),
            pending=PendingCalls(shared.approval_timeout, partial(self._deny_unanswered, record.id), shared.clock),
            mode_changed=self._mode_changed,
            announce=self.announce,
            moved=self.machine.on,
            waits_for_limits=self.agent.settings.on_rate_limit == "wait",
            lease=self.lease,
        )

    def _path_resolver(self) -> PathResolver:
        worktree = self.config.worktree
        return PathResolver(self.working_directory, None if worktree is None else (worktree.path, worktree.base))

    def _left_to_cli(self, tool: str) -> bool:
        """Whether the CLI decides about the calls of this tool."""
        if self.agent.mode(self.config.options) == ASK_MODE:
            return False
        return all(tool != app.name for app in self.config.app_tools or ())

    def _start(self, run: Run) -> None:
        """Begin to read the run's agent, which has its prompt."""
        run.start(self._run_over)
        self._changed(self)
        self.announce()

    def _run_over(self, run: Run) -> None:
        """The run has ended, or is suspended: see to the agent and to the queue."""
        self.used_at = self._shared.clock.monotonic()
        if run.suspended:
            if self.live is not None and self.live.alive:
                # It has only ended its prompt, and gets no other one: the answers start a fresh agent.
                self._evict(self)
            else:
                self._agent.release()
        elif run.agent_failed or (self.live is not None and not self.live.alive):
            self._agent.forget()
        else:
            self._agent.record_native_id()
        self._changed(self)
        self.queue.advance()

    # -- calls that wait for the client -----------------------------------------------------------------------------------

    async def restore_waiting(self, record: RunRecord) -> None:
        """Take over a run that an earlier gateway left waiting for the client, or that the first history ends in."""
        self.run = self._run(record, None)
        calls = await self.history.unanswered_calls()
        pending = pending_in(calls, self._runs_at_once, self.config.app_tools, self.agent.info.permissions.question_tools)
        steered = await waiting_messages(self._shared.store, record)
        self.run.restore(pending, unanswered(calls), steered, record.waiting_since)
        self.machine.on(RunEvent.RESTORED)

    def _runs_at_once(self, call: ToolUseBlock) -> bool:
        """Whether a call of the agent's own tools needs no permission. False where its evaluation could take long."""
        if self.agent.policy.is_slow(call.name, call.input):
            return False
        verdict = self.agent.policy.evaluate(call.name, call.input).verdict
        trusted = any(grant.name == call.name and grant.trust for grant in self.config.tools or ())
        return verdict == "allow" or (verdict is None and trusted)

    async def deny_overdue(self) -> None:
        """Deny the pending calls if their time limit has passed."""
        if self.run is not None and self.state == "waiting" and self.run.pending.overdue:
            await self._deny_unanswered(self.run.id, self.run.pending.since)

    async def _deny_unanswered(self, run_id: str, since: float | None) -> None:
        """The calls were not answered in time: they are denied. A live agent goes on from there; none is started for it."""
        async with self.lock:
            run = self.run
            if self.deleted or run is None or run.id != run_id or self.state != "waiting" or run.pending.since != since:
                return
            replies = run.pending.denials()
            if not run.suspended:
                await self._pass_answers(run, replies, self.config, by=TIME_LIMIT)
                return
            await run.wait()
            resolution = resolve(await self.history.unanswered_calls(), run.pending.calls, replies)
            await completed(self._end_unanswered(run, replies, resolution))

    async def _end_unanswered(self, run: Run, replies: Sequence[Reply], resolution: Resolution) -> None:
        await run.end_unanswered(replies, resolution)
        self._run_over(run)

    # -- the end of a run -------------------------------------------------------------------------------------------------

    async def cancel(self, turn: Turn | None = None, *, waiting: bool = False) -> bool:
        """Stop the run, whether it works or waits; False if there was none. The session is idle afterwards.

        A turn whose agent is being started ends without it: the agent is ended, and never gets the prompt.
        With a `turn`, only if its run is at work, or with `waiting` also waits, and no other turn has begun since.
        Queued messages that are stored wait then until a client says to go on.
        """
        stopping = self.queue.stop(CANCELLED) if turn is None else None
        try:
            return await self._cancel(turn, waiting)
        finally:
            if stopping is not None:
                await self._shared.clock.wait([stopping], STOP_TIMEOUT)

    async def _cancel(self, turn: Turn | None, waiting: bool) -> bool:
        # Of several cancels of a start the first one has ended its turn, and the others find none.
        starts = [start for start in self._starts if not start.cancelled] if turn is None else []
        for start in starts:
            start.cancel()
        async with self.lock:
            if any(start.ended for start in starts):
                return True
            if turn is not None and not ((self.busy or waiting) and self.turn_began == turn.first):
                return False
            if self.run is None or self.run.state is RunState.ENDED:
                return False
            if turn is not None:
                self.queue.stop(CANCELLED)
            with self.machine.over(State.ENDING):
                await self.run.cancel(CANCEL_GRACE)
            self._changed(self)
            self.queue.advance()
            return True

    async def end_agent(self, why: str) -> bool:
        """End the live agent at once; False if there is none.

        A run at work ends with this error. One that waits for its client goes on waiting; its answers start a fresh agent.
        """
        async with self.lock:
            self.machine.require(Command.END_AGENT)
            if self.live is None:
                return False
            if self.busy and self.run is not None:
                with self.machine.over(State.ENDING):
                    await self.run.fail(why)
                await self._agent.discard()
                self._changed(self)
                self.queue.advance()
            else:
                await self.sleep(self.state)
            return True

    # -- the end of the session here --------------------------------------------------------------------------------------

    def leave(self, why: GatewayError) -> None:
        """Take nothing any more: requests are refused with this error, also those whose agent is being started.

        Queued messages that are stored stay in the store.
        """
        self.machine.leave(why)
        self.queue.close(why)
        for start in self._starts:
            start.interrupt()

    async def delete_stored(self) -> None:
        """Delete the session from the store, and refuse what has not begun; call `stop` then. If it raises, nothing has changed.

        It needs no lock: the start of an agent holds that for long. Raises NotFound where the session is deleted already.
        """

        async def delete() -> None:
            self._require_not_deleted()
            await self._shared.store.sessions.delete(self.id)
            self.leave(NotFound(f"session {self.id!r} was deleted"))
            if self.lease is not None:
                self.lease.end_with_log()

        await completed(self.log.delete_stored(delete))

    async def stop(self, why: str, *, forget: bool = False) -> None:
        """End the run, with this as its error, and the agent: the daemon goes down or the session is deleted (`forget`).

        A run that waits for the client goes on waiting in the store, unless `forget` is set; call it under the lock then.
        """
        if not forget:
            self.leave(ShuttingDown(why))
            # An event that is being stored is not in the log yet: the end of the run would get its number.
            with suppress(TimeoutError):
                async with self._shared.clock.timeout(STORE_WAIT), self.lock:
                    pass
        if self._storing_mode is not None:
            self._storing_mode.cancel()
        for storing in self._storing_commands:
            storing.cancel()
        await self._agent.end_preparation()
        live = self._agent.current
        ends: list[Awaitable[None]] = []
        if self.run is not None:
            self.run.pending.stop_timer()
            if forget or self.run.state is not RunState.WAITING:
                ends.append(self.run.fail(why))
            else:
                self.run.expect_suspension()
        if live is not None:
            # At the same time: a run whose start is being stored ends when the store answers, its agent at once.
            ends.append(live.close())
        failures = [result for result in await asyncio.gather(*ends, return_exceptions=True) if result is not None]
        self._agent.release()
        if self.run is not None:
            await self.run.wait()
        stopped = asyncio.Event()
        stopped.set()
        await asyncio.gather(self._agent.close(), self.log.written(stop=stopped))
        self.log.close()
        if failures:
            raise failures[0]

    def end_unstored(self, why: str) -> None:
        """End the run, where `stop` cannot end it in time, for its readers only."""
        if self.busy and self.run is not None:
            self.run.end_unstored(why)
        self._agent.stop_storing()
        self.log.close()

    async def lose(self) -> None:
        """Another node has the session: end the run and the agent here. Its readers get LeaseLost."""
        self.leave(LeaseLost(self.id))
        self.log.lose()
        if self.run is not None:
            self.run.pending.stop_timer()
        for storing in [self._storing_mode, *self._storing_commands]:
            if storing is not None:
                storing.cancel()
        if self.busy and self.run is not None:
            self.run.lose()
        self._agent.stop_storing()
        await self._agent.end_preparation()
        await self._agent.discard()

    # -- settings ---------------------------------------------------------------------------------------------------------

    async def configure(self, config: SessionSettings) -> None:
        """Replace the settings, for the session's life. Call it under the lock.

        A CLI takes its settings when it starts: the next run has a fresh process, which resumes the native session. Its mode
        changes at once, where the CLI can do that.
        Raises AgentProblem if the secrets of the session are lost.
        """
        self.machine.require(Command.CONFIGURE)
        if config != self.config:
            config.require_secrets()
            if config.mcp_servers != self.config.mcp_servers:
                await self._shared.audit_mcp_servers(self.id, self.agent.name, config.mcp_servers)
            await completed(self._store_settings(config))
            await self._agent.change_mode(config)

    def _mode_changed(self, mode: str) -> None:
        """The CLI has changed the mode by itself. The setting changes at once, and is stored in the background."""
        if mode != self.config.options.get(MODE_OPTION):
            self.config = with_mode_option(self.config, mode)
            self._agent.mode_changed(mode)
            if self._storing_mode is None or self._storing_mode.done():
                self._storing_mode = asyncio.create_task(self._store_mode())

    async def _store_mode(self) -> None:
        async with self.lock:
            # The request that had the lock may have stored settings from before the change.
            self.config = self._agent.with_its_mode(self.config)
            try:
                # Again where the CLI has changed the mode meanwhile.
                while self.config != self._stored_config and not self.deleted:
                    await completed(self._write_settings(self.config))
            except StoreUnavailable as error:
                log.warning("session %s: its mode is stored with its next turn: %s", self.id, error)
        self._changed(self)

    async def _store_settings(self, config: SessionSettings) -> None:
        await self._write_settings(config)
        self.config = config

    async def _write_settings(self, config: SessionSettings) -> None:
        self.redactor.register(config.hidden)
        secrets = self._shared.encryption.encrypt(config.to_encrypt)
        await self._shared.store.sessions.update(self.id, config=config.to_json(), secrets=secrets)
        self._stored_config = config
        self.announce()

    def _settings_record(self, config: SessionSettings) -> SettingsRecord | None:
        """The settings of a turn, to be stored in the transaction of that; None if the store has them."""
        if config == self._stored_config:
            return None
        return SettingsRecord(config.to_json(), self._shared.encryption.encrypt(config.to_encrypt))

    def _settings_stored(self, config: SessionSettings) -> None:
        """The settings of a turn are stored with it, and take effect."""
        self.config = self._stored_config = config
        self._agent.expect(config.answer)

    def working_directory(self) -> Path:
        """The real path of its working folder. It reads the file system. Raises BadRequest if it may not work there any more."""
        folder = self.agent.folder_without_worktree(self.config.options, self.config.workspace_key)
        return folder if self.config.worktree is None else Path(self.config.worktree.folder)

    def folders(self) -> tuple[Path, tuple[Path, ...]]:
        """The real paths of its working folder, and of all others in which it may change files. Reads the file system.

        Raises BadRequest if the session may not work there any more.
        """
        worktree = () if self.config.worktree is None else (Path(self.config.worktree.path),)
        others = self.agent.additional_directories(self.config.additional_directories, self.config.workspace_key, any_folder=True)
        return self.working_directory(), (*worktree, *others)

    # -- the agent's process ----------------------------------------------------------------------------------------------

    async def process_started(self) -> None:
        """Wait until a process of its agent has been started, which may not be ready for a prompt."""
        await self._agent.process_started.wait()

    async def prepare(self) -> None:
        """Start the agent ahead of the next prompt, if the session is idle and no other agent has to be ended for that.

        Returns when the agent is ready, or there is to be none. It raises nothing: the next prompt starts an agent that could not
        be started, and raises the reason. The lock is free while the agent starts. Where the settings change meanwhile, it is
        started with the new ones, as it would be for a prompt.
        """
        settings: SessionSettings | None = None
        while settings != self.config:
            try:
                async with self.lock:
                    settings, preparation = self.config, await self._begin_preparation()
                if preparation is None:
                    return
                await asyncio.wait([preparation])
                if preparation.cancelled():
                    return
                preparation.result().watch_commands(self._commands_listed)
            except GatewayError as error:
                return log.info("session %s: its agent is not started ahead of a prompt: %s", self.id, error)
            except Exception as error:
                return log.warning("session %s: its agent is not started ahead of a prompt", self.id, exc_info=error)
            finally:
                self._changed(self)

    async def _begin_preparation(self) -> asyncio.Task[Agent] | None:
        """Begin to start an agent; None if none can be started now, or none has to be."""
        if not self.machine.permits(Command.PREPARE) or self.config.secrets_lost:
            return None
        # An agent that asks its client learns at its start what the client of the prompt can do.
        if self.agent.info.capabilities.asks_client:
            return None
        if self._agent.preparing_for(self.config) or not self._admission.has_free_agent_slot(self.id):
            return None
        await self._agent.change_mode(self.config)
        if self._agent.ready(self.config) is not None:
            return None
        await self._end_agent()
        await self.log.require_written()
        seed = await self.history.seed()
        # Others may have begun to start an agent meanwhile.
        if self.machine.gone is not None or not self._admission.has_free_agent_slot(self.id):
            return None
        preparation = self._agent.prepare(self.config, seed)
        # From here on it counts as an agent, and the registry holds the session.
        self._changed(self)
        return preparation

    async def sleep(self, state: str = "idle") -> None:
        """End the live agent, if the session is in this state; it is resumed when it is needed. Call it under the lock."""
        if self._agent.exists and self.state == state and not self.busy:
            await self._end_agent()
            self._changed(self)

    async def _end_agent(self) -> None:
        """End the live agent; a run that waits for the client is suspended."""
        if self.run is not None:
            self.run.expect_suspension()
        await self._agent.end()
        if self.run is not None:
            await self.run.wait()

    async def _fresh_agent(self, settings: SessionSettings, prompted: int) -> Agent:
        await self._end_agent()
        seed = await self.history.seed(leave_out=prompted)
        if self.run is not None and self.state == "waiting":
            seed += self.run.if_cancelled()
        return await self._start_agent(settings, seed, resume=True)

    async def _start_agent(self, settings: SessionSettings, seed: Sequence[Message], *, resume: bool) -> Agent:
        try:
            return await self._agent.start(settings, seed, resume=resume)
        finally:
            # The registry must hold the session from here on: otherwise the agent would never be closed.
            self._changed(self)

    # -- title and slash commands -----------------------------------------------------------------------------------------

    async def rename(self, title: str | None) -> None:
        """Give the session a title, which precedes that of its agent; None removes it. Raises NotFound."""
        self.machine.require_here()
        await completed(self._shared.store.session_metadata.update(self.id, chosen_title=title))
        self._notify_of_metadata()
        self.announce()

    def _commands_listed(self, commands: Commands) -> None:
        task = asyncio.create_task(self._store_commands(commands))
        self._storing_commands.add(task)
        task.add_done_callback(self._storing_commands.discard)

    async def _store_commands(self, commands: Commands) -> None:
        try:
            changed = not self.deleted and await store_metadata(self._shared.store, self.id, commands)
        except StoreUnavailable as error:
            return log.warning("session %s: its slash commands are stored with its next turn: %s", self.id, error)
        if changed:
            self._notify_of_metadata()

    def _notify_of_metadata(self) -> None:
        for callback in list(self.metadata_changed):
            callback()


async def _prompted(agent: Agent, message: UserMessage) -> bool:
    try:
        await agent.prompt(Prompt(message.content))
    except AgentGone:
        return False
    return True


def _answers(replies: Sequence[Reply]) -> TurnStart:
    permissions = tuple(
        ClientPermission(call_id=reply.call_id, granted=reply.allowed, reason=reply.reason, choice=reply.choice)
        for reply in replies
        if isinstance(reply, PermissionReply)
    )
    return TurnStart(messages=tuple(client_results(replies)), permissions=permissions)


def _waiting_text(pending: PendingCalls) -> str:
    results = [call.id for call in pending.calls.values() if call.wants == "result"]
    what = f"{ids(results)} waits for its result from the application" if results else "waits for permission"
    return f"a tool call of this session {what}; answer it or cancel the run, then send this again"
