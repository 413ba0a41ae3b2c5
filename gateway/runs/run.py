"""Run: one agent at work on one prompt. It reads the agent's events, writes them to the log and the history, and ends itself.

A run is not a turn: it outlives its readers, and while the agent waits for the client (`waiting`) it goes on in a later turn,
with the answers. A run of a session may also outlive its agent: where that ends while the client is awaited, the run is
suspended, and a fresh agent continues it.

It has the states of `RunState`, and tells its session each change of them (`RunEvent`). It knows no other state of the session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import groupby
from typing import cast

from drivers.contract.agent import AFTER_LIMIT, Agent, Prompt, Reply
from drivers.contract.driver_info import ToolGrant
from drivers.contract.errors import AgentGone, DriverError, InputFull
from drivers.contract.events import (
    DELTAS,
    AgentToken,
    AwaitedCall,
    Awaiting,
    Error,
    ModeChanged,
    OutputEvent,
    RateLimit,
    SessionEnd,
    Stderr,
    Thinking,
    Usage,
)
from drivers.contract.messages import Message, ToolUseBlock, UserMessage
from drivers.runtime.file_threads import in_thread
from gateway.errors import GatewayError, StoreAbandoned, StoreUnavailable
from gateway.events.event_log import RETRY, EventLog
from gateway.events.log_entries import LogEvent, TurnStart
from gateway.events.messages import message_row
from gateway.events.turn_reader import LAST
from gateway.observability.audit import log_decisions
from gateway.observability.metrics import RunMetrics
from gateway.policy.decision_record import CLIENT, TIME_LIMIT, Decision
from gateway.policy.enforcement import RELEVANT, PolicyEnforcer
from gateway.policy.rules import Evaluation
from gateway.runs.agent_output import STORED_FIRST, RunOutput
from gateway.runs.cancellation import completed
from gateway.runs.idempotency import IdempotencyKey
from gateway.runs.pending_calls import PendingCalls, Resolution, client_results
from gateway.runs.session_metadata import METADATA_EVENTS
from gateway.runs.store_retries import retried
from gateway.security.redaction import Redactor
from gateway.store import AuditRecord, RunRecord, SettingsRecord, Store
from gateway.store.fencing import Lease

log = logging.getLogger(__name__)

CLOSE_GRACE = 0.5
"""Seconds that an agent has to end when the gateway ends its run."""
MAX_STEERED = 16 * 1024 * 1024
"""Characters of messages to the agent at work that may wait for the end of its own message; a single one may be longer."""
EVALUATION_TIMEOUT = 5.0
"""Seconds for the evaluation of calls with long arguments or paths: a file system may not answer."""
MAX_LIMIT_WAIT = 6 * 3600.0
"""Seconds that a run waits for usage limits to reset, in all. The shortest limits of the vendors are for five hours."""
LIMIT_MARGIN = 2.0
"""Seconds that it waits longer, since the vendor's clock may be another."""
CLOSE_TIMEOUT = 10.0
"""Seconds until a run whose agent does not end is cancelled."""

ModeChange = Callable[[str], None]
"""Called with the mode that the agent's CLI has changed the session to."""


def ignore_mode(mode: str) -> None:
    """For runs without a session."""


Audit = Callable[[Sequence[Decision]], list[AuditRecord]]
"""Returns the rows of decisions."""


def audit_nothing(decisions: Sequence[Decision]) -> list[AuditRecord]:
    """For runs whose agent decides about its calls itself."""
    return []


class RunState(Enum):
    """The state of a run, also in the store."""

    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"


class RunEvent(Enum):
    """What happens to a run, for the state of its session (gateway/sessions/machine.py)."""

    RESTORED = "restored"
    """It waits for the client, as an earlier daemon left it in the store."""
    BEGAN = "began"
    """Its first turn is stored."""
    WAITS = "waits"
    """The turn is over, and calls wait for the client."""
    AGENT_ENDED = "agent ended"
    """Its agent has ended while it waits."""
    ANSWERED = "answered"
    """The client's answers are stored: the next turn of it."""
    ENDED = "ended"
    """It is over."""


def ignore_event(event: RunEvent) -> None:
    """For runs without a session."""


@dataclass(frozen=True, slots=True)
class TurnUsage:
    """What the agent has used in a turn of a run so far; None if it has reported nothing."""

    run_id: str
    turn: int
    usage: Usage | None


class Run:
    """Call `start` once; then it works by itself until `session_end` is in the log.

    `has_history`: its messages are stored. `suspendable`: it goes on waiting when its agent ends. `enforcer` decides about calls
    before the client is asked, `audit` makes the rows of its decisions, `pending` are the calls that wait for the client.
    `mode_changed` is called before the log has the event, `announce` when the run's state or the session's title has changed,
    `moved` with each change of its state, before anybody can read the event of that.
    `lease` is that of its log, on a node of a cluster.
    With `waits_for_limits` a run that a usage limit has stopped goes on when the limit resets, for MAX_LIMIT_WAIT in all. Its
    limits of time have the clock of the log.
    """

    def __init__(
        self,
        record: RunRecord,
        agent: Agent | None,
        log: EventLog,
        store: Store,
        redactor: Redactor,
        *,
        meter: RunMetrics,
        has_history: bool = False,
        suspendable: bool = False,
        enforcer: PolicyEnforcer | None = None,
        audit: Audit = audit_nothing,
        pending: PendingCalls | None = None,
        mode_changed: ModeChange = ignore_mode,
        announce: Callable[[], None] = lambda: None,
        moved: Callable[[RunEvent], None] = ignore_event,
        waits_for_limits: bool = False,
        lease: Lease | None = None,
    ) -> None:
        self._lease = lease
        self.id, self.first_seq, self.agent, self.log = record.id, record.first_seq, agent, log
        self.state = RunState(record.state)
        self.pending = pending or PendingCalls()
        self._store, self._redactor = store, redactor
        self._stop_requested = asyncio.Event()
        self._output = RunOutput(log, store, redactor, meter, has_history=has_history, stop=self._stop_requested)
        self._meter, self._suspendable, self._has_history = meter, suspendable, has_history
        self._enforcer, self._audit, self._mode_changed = enforcer or PolicyEnforcer(), audit, mode_changed
        self._suspending = self._turn_ending = self._superseded = False
        self.agent_failed = False
        self._failing: str | None = None
        self._closing: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None
        self._not_waiting = asyncio.Event()
        self._storing_answers = asyncio.Lock()
        self._limit_wait = MAX_LIMIT_WAIT if waits_for_limits else 0.0
        self._clock, self._waits_for_limit = log.clock, False
        self._limit_errors: Sequence[OutputEvent] = ()
        self._announce, self._moved = announce, moved

    def _move(self, state: RunState, event: RunEvent) -> None:
        # A run that was ended without the store is over, whatever the store says later.
        if self.state is not RunState.ENDED:
            self.state = state
            self._moved(event)

    @property
    def _stopping(self) -> bool:
        return self._stop_requested.is_set()

    @property
    def suspended(self) -> bool:
        """Whether it waits for the client without an agent."""
        return self.state is RunState.WAITING and (self.agent is None or not self.agent.alive)

    @property
    def turn_usage(self) -> TurnUsage:
        """What the agent has used in the turn at work, which is not stored yet."""
        return TurnUsage(self.id, self._output.turns_over, self._output.usage)

    def restore(
        self,
        pending: Iterable[AwaitedCall],
        unanswered: Mapping[str, ToolUseBlock],
        steered: Iterable[UserMessage],
        since: float | None,
    ) -> None:
        """Wait again for calls that an earlier gateway left pending; `unanswered` are all calls without a result.

        `steered` are messages that the user sent to the agent at work, and that are not in the history yet.
        """
        self.pending.open(pending, since)
        self._meter.mark_waiting()
        self._output.restore(unanswered, steered)
        self._enforcer.add_calls(unanswered)

    def call(self, call_id: str) -> ToolUseBlock | None:
        """A call that has started and not ended, such as a pending one; None if there is none with this id."""
        return self._enforcer.call(call_id)

    def lacks_trust_only(self, call_id: str) -> bool:
        """Whether a pending call would have run by itself if the client had trusted its tool when the agent began."""
        return self._enforcer.lacks_trust_only(call_id)

    def if_cancelled(self) -> list[Message]:
        """The messages that cancelling this run while it waits adds to the history."""
        return self._output.if_cancelled()

    @property
    def waiting_messages(self) -> tuple[UserMessage, ...]:
        """The user's messages to the agent at work that are in the history once its calls have their results."""
        return self._output.waiting_messages

    def start(self, ended: Callable[[Run], None] = lambda run: None) -> None:
        """Read the agent from now on; `ended` is called when the run has ended or is suspended."""
        self._work = asyncio.create_task(self._pump(), name=f"run {self.id}")
        self._work.add_done_callback(lambda _: ended(self))

    async def wait(self) -> None:
        """Wait until the agent is not read any more: the run has ended, or is suspended."""
        if self._work:
            await asyncio.shield(self._work)

    async def waits_no_longer(self) -> None:
        """Wait until no call is pending."""
        await self._not_waiting.wait()

    async def steer(self, message: UserMessage, key: IdempotencyKey | None = None) -> int | None:
        """Send a message to the agent at work; the number of its event, or None if the agent cannot take it now.

        The idempotency `key` of the request is stored with the event. A kill between the two ends the run, so that a repeated
        request begins another one with the message.
        Raises InputFull while the agent has not read earlier messages, or has not completed its own message since.
        """
        if self.state is not RunState.RUNNING or self._turn_ending or self._stopping or self.agent is None:
            return None
        if self._output.steered_size > MAX_STEERED:
            size = f"more than {MAX_STEERED // 1024 // 1024} MiB"
            raise InputFull(f"{size} of earlier messages wait for the end of the agent's own message; send this again later")
        if not await self.agent.steer(Prompt(message.content)):
            return None
        # Nothing is awaited in between: the agent's response comes after the message.
        return await self._output.steered(message, key.record(self.log.log_id, 0) if key is not None else None)

    def expect_suspension(self) -> None:
        """The gateway is about to end the agent: if the run waits, its log and the metrics do not report that as a failure."""
        self._suspending = self.state is RunState.WAITING

    # -- calls that wait for the client -----------------------------------------------------------------------------------

    async def answer(
        self,
        replies: Sequence[Reply],
        start: TurnStart,
        key: IdempotencyKey | None = None,
        settings: SettingsRecord | None = None,
        by: str = CLIENT,
        stored: Callable[[], None] = lambda: None,
    ) -> int:
        """Store the client's answers, with the session's new settings, and pass them to the agent, which goes on in a new turn.

        `stored` is called when the settings take effect. Returns the number of the turn's first event, which is `start`.
        """
        results = client_results(replies)
        closed = [result.tool_call_id for result in results]
        seq = await self._store_answers(replies, by, results, closed, [start], key, settings, stored=stored)
        await self._reply([*self._enforcer.release(replies), *replies])
        return seq

    async def resume(
        self,
        agent: Agent | None,
        grants: Sequence[ToolGrant],
        replies: Sequence[Reply],
        resolution: Resolution,
        start: TurnStart,
        key: IdempotencyKey | None = None,
        settings: SettingsRecord | None = None,
        stored: Callable[[], None] = lambda: None,
    ) -> int:
        """Continue a suspended run with a fresh agent, which has all pending calls in its history. `start` the run afterwards.

        Without an agent only the answers are stored, and the run must be cancelled. `stored` is called when the settings take
        effect. Returns the number of the turn's first event.
        """
        await self.wait()
        results = [*client_results(replies), *resolution.results]
        events = [start, *resolution.events]
        closed, steered = self._output.unanswered, self.waiting_messages
        seq = await self._store_answers(replies, CLIENT, results, closed, events, key, settings, steered, stored)
        self.agent, self._suspending, self.agent_failed, self._closing = agent, False, False, None
        self._enforcer.begin(grants, resolution.approved)
        return seq

    async def end_unanswered(self, replies: Sequence[Reply], resolution: Resolution) -> None:
        """End a suspended run whose calls were not answered in time: they are denied, and no agent is started for it."""
        closed, results = self._output.unanswered, resolution.results
        await self._store_answers(replies, TIME_LIMIT, results, closed, resolution.events, steered=self.waiting_messages)
        await self._take([SessionEnd(exit_code=130, stop_reason="cancelled")])

    def _audit_rows(self) -> list[AuditRecord]:
        decisions, self._enforcer.decisions = self._enforcer.decisions, []
        return self._audit(decisions)

    async def _confirm(self, lease: Lease) -> None:
        """Wait until the store says that no other node has the run. Raises LeaseLost."""
        while True:
            try:
                return await lease.confirm()
            except StoreAbandoned:
                raise
            except StoreUnavailable as error:
                # Nobody else can take it over meanwhile, and the agent waits.
                if self._stop_requested.is_set():
                    raise
                log.warning("run %s waits for the store, to renew its lease: %s", self.id, error)
                with suppress(TimeoutError):
                    async with self._clock.timeout(RETRY):
                        await self._stop_requested.wait()

    async def _record_decisions(self) -> None:
        if rows := self._audit_rows():
            await retried(partial(self._store.audit.append, rows), self._stop_requested, self._clock)
            log_decisions(rows)

    async def _record_cancelled(self) -> None:
        try:
            await self._record_decisions()
        except StoreUnavailable:
            # A run can be stopped whatever is broken.
            log.exception("the cancelled calls of run %s are not in the audit", self.id)

    async def _store_answers(
        self,
        replies: Sequence[Reply],
        by: str,
        results: Sequence[Message],
        closed: Iterable[str],
        events: Sequence[LogEvent],
        key: IdempotencyKey | None = None,
        settings: SettingsRecord | None = None,
        steered: Sequence[UserMessage] = (),
        stored: Callable[[], None] = lambda: None,
    ) -> int:
        """Store the results in one transaction with the events that report them, and with the audit.

        `steered` are messages that have waited for the last of these results: they are in the history from the event after the
        first on. Returns the number of the first event.
        """
        log_id = self.log.log_id
        async with self._storing_answers, self.log.reserved(*events) as entries:
            seq = entries[0].seq
            rows, row = [message_row(result, seq) for result in results], self.log.row(entries)
            rows += [message_row(message, seq + 1) for message in steered]
            key_record = key.record(log_id, seq) if key else None
            self._enforcer.answered(replies, by)
            decisions = self._audit_rows()
            await self._store.runs.resume(self.id, log_id, rows, row, key_record, settings, decisions)
            log_decisions(decisions)
            stored()
            self._answers_stored(replies, closed)
            self._output.messages_stored(steered)
        return seq

    def _answers_stored(self, replies: Sequence[Reply], closed: Iterable[str]) -> None:
        for call_id in closed:
            self._output.answered(call_id)
        self.pending.close(reply.call_id for reply in replies)
        self._move(RunState.RUNNING, RunEvent.ANSWERED)
        self._not_waiting.set()
        self._meter.start_turn()

    # -- the end ----------------------------------------------------------------------------------------------------------

    async def cancel(self, grace: float | None = None) -> None:
        """Interrupt the agent, and wait for the end; an agent that takes more than `grace` seconds for it is killed."""
        self._request_stop()
        if self.state is RunState.WAITING:
            self._enforcer.cancelled(self.pending.calls)
            await self._record_cancelled()
        if self.agent is not None and self.state is not RunState.ENDED and not self._waits_for_limit:
            with suppress(DriverError):
                await self.agent.interrupt(grace)
        await self.wait()
        if self.state is not RunState.ENDED:
            # Suspended: there is no agent whose last event would end it.
            await completed(self._take([SessionEnd(exit_code=130, stop_reason="cancelled")]))

    def end_unstored(self, message: str) -> None:
        """End a run that cannot be ended in time, for its readers only; the store gets an end at the next start of the daemon."""
        if self.state is RunState.ENDED:
            return
        self._move(RunState.ENDED, RunEvent.ENDED)
        if self._work is not None:
            self._work.cancel()
        self._publish_unstored(_error_end(message))

    def lose(self) -> None:
        """Another node of a cluster has the run: it is over here without an end, which that node stores."""
        if self.state is not RunState.ENDED:
            self._move(RunState.ENDED, RunEvent.ENDED)
            if self._work is not None:
                self._work.cancel()

    def cancelled_in_store(self, end: SessionEnd) -> None:
        """The run, which was waiting, is stored as cancelled: its `end` is published next. Call `end_prompt` then."""
        self._request_stop()
        self._enforcer.cancelled(self.pending.calls)
        self._superseded = True
        # What it has sent meanwhile waits for the reservation, and would be events of the next run.
        self._output.drop()
        self.log.drop_held(METADATA_EVENTS)
        self._set_turn_over(end, self._clock.time())

    async def end_prompt(self, grace: float | None = None) -> None:
        """Interrupt the agent of a run that is stored as cancelled, and wait until it can take the next prompt or is gone.

        It is gone after `grace` seconds, or those of `limits.grace`. To cancel this does not undo the interrupt: call it again
        with less time.
        """
        await completed(self._record_cancelled())
        if self.agent is not None and self._work is not None and not self._work.done():
            with suppress(DriverError):
                await self.agent.interrupt(grace)
            await self.wait()

    async def fail(self, message: str) -> None:
        """End the run from the gateway's side: the log gets this error and its `session_end`."""
        if self.state is RunState.ENDED:
            return
        self._request_stop()
        if self.agent is None:
            await self.wait()
        if self.agent is None or self._work is None or self._work.done():
            return await self._fail(message)
        self._failing = message
        # Not by cancelling the work, which may be in the middle of storing: an agent that is closed ends its run.
        await self.agent.close(CLOSE_GRACE)
        _, unfinished = await self._clock.wait([self._work], CLOSE_TIMEOUT)
        for work in unfinished:
            work.cancel()
            await asyncio.wait([work])

    # -- the agent's events -----------------------------------------------------------------------------------------------

    def _request_stop(self) -> None:
        """The gateway ends the run: it waits for the store no longer than it must."""
        self._stop_requested.set()

    async def _pump(self) -> None:
        try:
            while self.agent is not None and (self.state is not RunState.ENDED or self._superseded):
                events = [*self._limit_errors, *await self.agent.receive()] if self._limit_errors else await self.agent.receive()
                self._limit_errors = ()
                if self._lease is not None and not self._lease.is_fresh:
                    # This process was stopped for long: another node may have ended the run, and these events with it.
                    await self._confirm(self._lease)
                if await self._take_received(events):
                    return
            return
        except asyncio.CancelledError:
            failure = self._failing or "the run was stopped"
        except AgentGone as error:
            failure = str(error)
        except GatewayError as error:
            log.error("run %s failed: %s", self.id, error)
            self._request_stop()
            failure = self._failing or str(error)
        except Exception as error:
            log.exception("run %s failed", self.id)
            self._request_stop()
            failure = self._failing or f"the gateway failed: {type(error).__name__}: {error}"
        await self._end_failed(failure)

    async def _take_received(self, events: Sequence[OutputEvent]) -> bool:
        """Take what was read. Returns whether that was the end of the prompt of a superseded run."""
        if self._superseded:
            return await self._take_superseded(events)
        if self._failing is not None or self._suspending:
            events = self._of_ended_agent(events)
        await self._take_or_wait(events)
        await self.log.wait_for_capacity(self._stop_requested)
        return self._superseded and any(isinstance(event, SessionEnd) for event in events)

    def _of_ended_agent(self, events: Sequence[OutputEvent]) -> Sequence[OutputEvent]:
        """The events of an agent that the gateway ends, without the errors that it reports for that."""
        if self._failing is not None:
            return _failed(events, self._failing)
        return [event for event in events if not isinstance(event, Error)]

    async def _take_or_wait(self, events: Sequence[OutputEvent]) -> None:
        if self._limit_wait:
            events = self._without_limit_errors(events)
        reset = self._limit_reset(events)
        await (self._take(events) if reset is None else self._wait_for_limit(events, reset))

    def _without_limit_errors(self, events: Sequence[OutputEvent]) -> Sequence[OutputEvent]:
        """The events before a usage limit's error that is last. It is kept until the agent's next events, which say whether the
        turn ends with it: an agent may write the two apart."""
        first = next((at for at, event in enumerate(events) if _is_limit_error(event)), len(events))
        if not all(isinstance(event, Error | Stderr) for event in events[first:]):
            first = len(events)
        self._limit_errors = events[first:]
        return events[:first]

    def _limit_reset(self, events: Sequence[OutputEvent]) -> float | None:
        """When the usage limit resets that ends the run with these events; None if it does not, or not in time."""
        if not self._limit_wait or self._stopping or not events or not isinstance(events[-1], SessionEnd):
            return None
        resets = [event.resets_at for event in events if isinstance(event, Error) and event.resets_at is not None]
        seconds = self._seconds_until(resets[-1]) if resets and self.agent is not None and self.agent.alive else None
        return resets[-1] if seconds is not None and seconds <= self._limit_wait else None

    def _seconds_until(self, reset: float) -> float:
        return max(0.0, reset - self._clock.time()) + LIMIT_MARGIN

    async def _wait_for_limit(self, events: Sequence[OutputEvent], reset: float) -> None:
        """Wait until a usage limit resets, then let the agent go on, unless the run is stopped meanwhile."""
        self._waits_for_limit = True
        try:
            kept: list[OutputEvent] = [event for event in events if not isinstance(event, Error | Stderr | SessionEnd)]
            await self._take([*kept, RateLimit(status="rejected", resets_at=reset, waiting=True)])
            seconds = self._seconds_until(reset)
            self._limit_wait = max(0.0, self._limit_wait - seconds)
            await self._stopped_or_gone(seconds)
        finally:
            self._waits_for_limit = False
        if not self._stopping and self.agent is not None:
            return await self.agent.prompt(AFTER_LIMIT)
        cancelled = [SessionEnd(exit_code=130, stop_reason="cancelled")]
        await self._take(_error_end(self._failing) if self._failing is not None else cancelled)

    async def _stopped_or_gone(self, seconds: float) -> None:
        """Wait until the run is to stop, for some seconds at most. Raises AgentGone as soon as the agent has ended by itself."""
        stopped, gone = asyncio.create_task(self._stop_requested.wait()), asyncio.create_task(self._agent_gone())
        try:
            await self._clock.wait([stopped, gone], seconds, asyncio.FIRST_COMPLETED)
        finally:
            ended = gone.done()
            stopped.cancel()
            gone.cancel()
            await asyncio.wait([stopped, gone])
        if ended and not self._stopping:
            gone.result()

    async def _agent_gone(self) -> None:
        """Keep what the agent reports about its session between two prompts. Raises AgentGone as soon as the agent has ended."""
        while self.agent is not None:
            try:
                await self._take_superseded(await self.agent.receive())
            except AgentGone:
                if not self.agent.alive:
                    raise
                # An agent that has a process in its turns only.
                return await asyncio.Future()

    async def _take_superseded(self, events: Sequence[OutputEvent]) -> bool:
        """No turn is under way, or that of a next run is: only what the agent reports about its session is kept.

        Returns whether its prompt has ended.
        """
        # Its last event is counted already.
        if counted := [event for event in events if not isinstance(event, SessionEnd)]:
            self._meter.record(counted)
        for event in events:
            if type(event) in METADATA_EVENTS:
                await self._output.store_first(event)
        self._output.flush()
        return len(counted) < len(events)

    async def _end_failed(self, message: str) -> None:
        """End a run whose agent is not read any more: the agent first, so that no later run gets its output."""
        self.agent_failed = True
        if self.agent is not None and self._closing is None:
            self._closing = asyncio.create_task(self._close(self.agent))
            await self._clock.wait([self._closing], CLOSE_TIMEOUT)
        if self.state is not RunState.ENDED:
            await self._fail(message)

    async def _close(self, agent: Agent) -> None:
        try:
            await agent.close(CLOSE_GRACE)
        except Exception:
            log.exception("the agent of run %s cannot be ended", self.id)

    async def _fail(self, message: str) -> None:
        if self.state is RunState.ENDED:
            return
        last = [*self._limit_errors, *_error_end(message)]
        try:
            await self._take(last)
        except Exception:
            # Readers of the log must get an end whatever is broken.
            log.exception("the end of run %s cannot be stored", self.id)
            self._move(RunState.ENDED, RunEvent.ENDED)
            self._publish_unstored(last)

    def _publish_unstored(self, last: Sequence[OutputEvent]) -> None:
        for event in last:
            self._output.take(event)
        self._output.flush()

    async def _take(self, events: Sequence[OutputEvent]) -> None:
        """Log the events; the last event of a turn comes after everything that a client may ask for then is stored."""
        for kind, group in groupby(self._unless_superseded(await self._enforce(events)), type):
            if kind in DELTAS:
                self._output.take_deltas(cast("list[AgentToken | Thinking]", list(group)))
                continue
            for event in group:
                if kind in LAST and isinstance(event, Awaiting | SessionEnd):
                    async with self._storing_answers:
                        # With its answers stored, the run does not wait any more, and ends with its agent.
                        suspends = self._suspends(event)
                    if suspends:
                        self.agent = None
                        self._move(RunState.WAITING, RunEvent.AGENT_ENDED)
                        if not self._suspending:
                            self._meter.crashed_while_suspended()
                        return self._output.flush()
                    await self._turn_over(event)
                    if kind is SessionEnd:
                        return
                elif kind in STORED_FIRST:
                    await self._output.store_first(event)
                    self._announce()
                else:
                    if kind is ModeChanged and isinstance(event, ModeChanged):
                        self._mode_changed(event.mode)
                    self._output.take(event)
        self._output.flush()

    def _unless_superseded(self, events: Iterable[OutputEvent]) -> Iterator[OutputEvent]:
        for event in events:
            if not self._superseded or type(event) in METADATA_EVENTS:
                yield event

    def _suspends(self, event: Awaiting | SessionEnd) -> bool:
        unrequested = isinstance(event, SessionEnd) and event.exit_code != 0 and not self._stopping
        return unrequested and self._suspendable and self.state is RunState.WAITING

    async def _enforce(self, events: Sequence[OutputEvent]) -> Sequence[OutputEvent]:
        """The events as the client gets them, once the calls that do not need the client are decided."""
        if RELEVANT.isdisjoint(map(type, events)):
            return events
        if slow := self._enforcer.slow_calls(events):
            self._enforcer.add_evaluations(await self._evaluated(slow))
        enforced = self._enforcer.apply(events)
        # The audit has a decision before it takes effect.
        await self._record_decisions()
        await self._reply(enforced.replies)
        return enforced.events

    async def _evaluated(self, calls: Sequence[ToolUseBlock]) -> list[tuple[ToolUseBlock, Evaluation]]:
        """Evaluate calls outside of the event loop. The client is asked where that does not end in time."""
        try:
            async with self._clock.timeout(EVALUATION_TIMEOUT):
                return await in_thread(self._enforcer.evaluate, calls)
        except OSError as error:
            why = str(error) or f"its arguments were not evaluated within {EVALUATION_TIMEOUT:g} s"
            return [(call, Evaluation("ask", reason=why)) for call in calls]

    async def _reply(self, replies: Sequence[Reply]) -> None:
        # An agent that is gone reports so when it is read, after everything that it has sent before.
        with suppress(AgentGone):
            for reply in replies:
                if self.agent is not None:
                    await self.agent.reply(reply)

    async def _turn_over(self, event: Awaiting | SessionEnd) -> None:
        self._turn_ending = True
        try:
            self._output.flush()
            self._log_crash(event)
            stored = await self.log.written(stop=self._stop_requested)
            if not (stored or self._stopping or (isinstance(event, SessionEnd) and event.stop_reason == "error")):
                raise StoreUnavailable("this turn cannot be stored; the log of the gateway has the reason")
            since = self._clock.time()
            # Nothing is awaited between the new state and the event: a next turn must not begin before this one's last event
            # is in the log.
            await self.log.end_turn(
                self.id,
                event,
                since,
                self._output.take_last(event),
                failure=self._output.failure(event),
                usage=self._output.usage if self._has_history else None,
                ended=partial(self._set_turn_over, event, since),
                still=lambda: not self._superseded,
                stop=self._stop_requested,
            )
        finally:
            self._turn_ending = False

    def _log_crash(self, event: Awaiting | SessionEnd) -> None:
        failed = isinstance(event, SessionEnd) and event.stop_reason == "error" and not self._stopping
        if failed and self.agent is not None and not self.agent.alive:
            log.warning("the agent of run %s has ended: %s", self.id, self._output.error)

    def _set_turn_over(self, event: Awaiting | SessionEnd, since: float) -> None:
        self._output.turn_over()
        if isinstance(event, SessionEnd):
            self._move(RunState.ENDED, RunEvent.ENDED)
            self.pending.close()
            self._not_waiting.set()
        else:
            self._not_waiting.clear()
            self._move(RunState.WAITING, RunEvent.WAITS)
            self.pending.open(event.calls, since)
        self._meter.end_turn(event, self.agent, stopping=self._stopping)
        self._announce()


def _error_end(message: str) -> list[OutputEvent]:
    return [Error(message=message), SessionEnd(exit_code=1, stop_reason="error")]


def _is_limit_error(event: OutputEvent) -> bool:
    return isinstance(event, Error) and event.resets_at is not None


def _failed(events: Sequence[OutputEvent], why: str) -> list[OutputEvent]:
    """The last events of a run that the gateway ends: its own reason instead of the agent's."""
    kept: list[OutputEvent] = [event for event in events if not isinstance(event, Error | Stderr | SessionEnd)]
    return [*kept, *_error_end(why)] if any(isinstance(event, SessionEnd) for event in events) else kept
