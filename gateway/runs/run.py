"""Run: one agent at work on one prompt. It reads the agent, feeds the log and the history, and knows how it ends.

A run is not a turn: it outlives its listeners, and while the agent waits for the client it is suspended (`waiting`) until a
later turn answers. A run of a session outlives its agent too: if that ends while it waits, a fresh one goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum

from drivers.contract.agent import Agent, PermissionReply, Prompt, Reply
from drivers.contract.errors import AgentGone, DriverError
from drivers.contract.events import AwaitedCall, Awaiting, Error, OutputEvent, SessionEnd, Stderr
from drivers.contract.info import ToolGrant
from drivers.contract.messages import Message, ToolUseBlock, UserMessage
from gateway.events.event_log import Entry, EventLog
from gateway.events.turn import LAST
from gateway.observability.metrics import RunMetrics
from gateway.policy.decisions import CLIENT, Decision
from gateway.policy.enforcement import MATTER, PolicyEnforcer
from gateway.policy.pending_calls import Resolution
from gateway.runs.output import STORED_FIRST, Keep, RunOutput, keep_nothing
from gateway.security.redaction import Redactor
from gateway.store import KeyRecord, MessageRow, RunRecord, Store

log = logging.getLogger(__name__)

BRIEF = 0.5
"""Seconds that an agent has to end when the gateway ends its run."""
PATIENCE = 10.0
"""Seconds until a run whose agent does not end is cut off."""

Note = Callable[[Sequence[Decision]], Awaitable[None]]


async def note_nothing(decisions: Sequence[Decision]) -> None:
    """For runs whose agent decides about its calls itself."""


class RunState(Enum):
    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"


class Run:
    """`start` once; then it works by itself until `session_end` is in the log.

    `suspendable`: it goes on waiting without its agent. `gate` decides about calls before the client is asked, `note` writes
    its decisions down, `waits` is called whenever the run begins to wait.
    """

    def __init__(
        self,
        record: RunRecord,
        agent: Agent | None,
        log: EventLog,
        store: Store,
        redactor: Redactor,
        keep: Keep = keep_nothing,
        *,
        meter: RunMetrics,
        suspendable: bool = False,
        gate: PolicyEnforcer | None = None,
        note: Note = note_nothing,
        waits: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self.id, self.first_seq, self.agent, self.log = record.id, record.first_seq, agent, log
        self.state = RunState(record.state)
        self.calls: dict[str, AwaitedCall] = {}
        self.answered: set[str] = set()
        self.waiting_since = record.waiting_since
        self._store, self._redactor = store, redactor
        self._output = RunOutput(log, store, redactor, meter, keep)
        self._meter, self._suspendable = meter, suspendable
        self._gate, self._note, self._waits = gate or PolicyEnforcer(), note, waits
        self._stopping = False
        self._failing: str | None = None
        self._work: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()

    @property
    def suspended(self) -> bool:
        """Whether it waits for the client without an agent."""
        return self.state is RunState.WAITING and (self.agent is None or not self.agent.alive)

    def wait_for(self, calls: Mapping[str, AwaitedCall], open_calls: Mapping[str, ToolUseBlock]) -> None:
        """Take up the calls that an earlier gateway left open."""
        self.calls = dict(calls)
        self._meter.mark_waiting()
        self._output.know(open_calls)
        self._gate.know(open_calls)

    def trust_would_do(self, call_id: str) -> bool:
        """Whether a call that waits would have run by itself if the client had trusted its tool when the agent began."""
        return self._gate.trust_would_do(call_id)

    def start(self, ended: Callable[[Run], None] = lambda run: None) -> None:
        """Begin to read the agent; `ended` is called when the last event is in the log."""
        self._work = asyncio.create_task(self._pump(), name=f"run {self.id}")
        self._work.add_done_callback(lambda _: ended(self))

    async def wait(self) -> None:
        """Until the run has ended."""
        if self._work:
            await asyncio.shield(self._work)

    async def moved(self) -> None:
        """Until it waits for the client no longer."""
        await self._moved.wait()

    async def answer(
        self, replies: Sequence[Reply], results: Sequence[Message], begin: Entry, key: KeyRecord | None = None, by: str = CLIENT
    ) -> None:
        """Pass the client's answers on, and store the results among them; the run is at work again, in the turn of `begin`."""
        await self._note_answers(replies, by)
        closed = [reply.call_id for reply in replies if not isinstance(reply, PermissionReply)]
        await self._answered(closed, results, begin, key)
        self.answered |= {reply.call_id for reply in replies}
        await self._tell([*self._gate.release(replies), *replies])

    async def steer(self, message: UserMessage) -> int | None:
        """Say something to the agent at work; the number of its event. None if it cannot be told now."""
        if self.state is not RunState.RUNNING or self.agent is None or not await self.agent.steer(Prompt(message.content)):
            return None
        # Nothing is awaited in between: what the agent says to it comes behind it.
        return await self._output.steered(message)

    async def resume(
        self,
        agent: Agent,
        grants: Sequence[ToolGrant],
        replies: Sequence[Reply],
        results: Sequence[Message],
        resolution: Resolution,
        begin: Entry,
        key: KeyRecord | None = None,
    ) -> None:
        """Go on with a fresh agent, to which all open calls are history. `start` it when the agent has been told so."""
        await self.wait()
        await self._note_answers(replies, CLIENT)
        await self._answered(self._output.open_calls, [*results, *resolution.results], begin, key)
        self.answered |= {reply.call_id for reply in replies}
        self.agent = agent
        self._gate.begin(grants, resolution.approved)
        self.log.append(resolution.events)

    async def close_calls(self, replies: Sequence[Reply], resolution: Resolution, by: str) -> None:
        """End a suspended run whose calls nobody has answered: they have their results, and no agent is started for it."""
        await self._note_answers(replies, by)
        await self._answered(self._output.open_calls, resolution.results, None)
        self.answered |= {reply.call_id for reply in replies}
        self.log.append(resolution.events)
        await self._take([SessionEnd(exit_code=130, stop_reason="cancelled")])

    async def _note_answers(self, replies: Sequence[Reply], by: str) -> None:
        self._gate.answered(replies, by)
        await self._note_decisions()

    async def _note_decisions(self) -> None:
        decisions, self._gate.decisions = self._gate.decisions, []
        if decisions:
            await self._note(decisions)

    async def _answered(
        self, closed: Iterable[str], results: Sequence[Message], begin: Entry | None, key: KeyRecord | None = None
    ) -> None:
        # Without a turn of the client's, the results belong to the event at which the run began to wait.
        seq, row = (begin.seq, self.log.row(begin)) if begin else (self.log.last, None)
        rows = [MessageRow(message.model_dump_json(), seq) for message in results]
        await self._store.runs.resume(self.id, self.log.log_id, rows, row, key)
        if begin:
            self.log.show(begin)
        for call_id in closed:
            self._output.answered(call_id)
        self.calls, self.waiting_since = {}, None
        self.state = RunState.RUNNING
        self._moved.set()
        self._meter.start_turn()

    async def cancel(self, grace: float | None = None) -> None:
        """Interrupt the agent, and wait for the end; an agent that takes more than `grace` seconds for it is killed."""
        self._stopping = True
        if self.state is RunState.WAITING:
            self._gate.cancelled(self.calls)
            await self._note_decisions()
        if self.agent is not None and self.state is not RunState.ENDED:
            with suppress(DriverError):
                await self.agent.interrupt(grace)
            await self.wait()
        if self.state is not RunState.ENDED:
            # Suspended: nobody is left to be interrupted.
            await self._take([SessionEnd(exit_code=130, stop_reason="cancelled")])

    async def fail(self, message: str) -> None:
        """End the run from the gateway's side: the log gets this error and its `session_end`."""
        if self.state is RunState.ENDED:
            return
        self._stopping = True
        if self.agent is None or self._work is None or self._work.done():
            return await self._fail(message)
        self._failing = message
        # Not by cancelling the work, which may be in the middle of storing: an agent that is closed ends its run.
        await self.agent.close(BRIEF)
        _, unfinished = await asyncio.wait([self._work], timeout=PATIENCE)
        for work in unfinished:
            work.cancel()
            await asyncio.wait([work])

    async def _pump(self) -> None:
        try:
            while self.state is not RunState.ENDED and self.agent is not None:
                events = await self.agent.receive()
                await self._take(events if self._failing is None else _failed(events, self._failing))
                await self.log.room()
        except asyncio.CancelledError:
            await self._fail(self._failing or "the run was stopped")
        except AgentGone as error:
            await self._fail(str(error))
        except Exception as error:
            log.exception("run %s failed", self.id)
            self._stopping = True
            await self._fail(f"the gateway failed: {type(error).__name__}: {error}")

    async def _fail(self, message: str) -> None:
        ending = _ending(message)
        try:
            await self._take(ending)
        except Exception:
            # Whatever is broken, who reads the log must see the end of it.
            log.exception("the end of run %s cannot be stored", self.id)
            self.state = RunState.ENDED
            self.log.append(self._redactor.clean_event(event) for event in ending)

    async def _take(self, events: Sequence[OutputEvent]) -> None:
        """Log what came; what ends a turn comes last, after everything that a client may ask for then is stored."""
        for event in await self._decided(events):
            kind = type(event)
            if kind in LAST and isinstance(event, Awaiting | SessionEnd):
                if self._suspends(event):
                    self.agent = None
                    self._meter.crashed_while_suspended()
                    break
                await self._output.take_last(event)
                await self._turn_over(event)
                if kind is SessionEnd:
                    return
            elif kind in STORED_FIRST:
                await self._output.store_first(event)
            else:
                self._output.take(event)
        await self._output.flush()

    def _suspends(self, event: Awaiting | SessionEnd) -> bool:
        unasked = isinstance(event, SessionEnd) and event.exit_code != 0 and not self._stopping
        return unasked and self._suspendable and self.state is RunState.WAITING

    async def _decided(self, events: Sequence[OutputEvent]) -> Sequence[OutputEvent]:
        """The events as the client shall see them, once the calls that do not need it are decided."""
        if not any(type(event) in MATTER for event in events):
            return events
        passed = self._gate.pass_on(events)
        # First written down, then done.
        await self._note_decisions()
        await self._tell(passed.replies)
        return passed.events

    async def _tell(self, replies: Sequence[Reply]) -> None:
        # An agent that is gone says so when it is read, behind all that it has said before.
        with suppress(AgentGone):
            for reply in replies:
                if self.agent is not None:
                    await self.agent.reply(reply)

    async def _turn_over(self, event: Awaiting | SessionEnd) -> None:
        # Nothing is awaited between the new state and the event: a next turn must not begin before this one's last event
        # is in the log.
        since = time.time()
        entry = await self.log.store_stop(self.id, event, since)
        if isinstance(event, SessionEnd):
            self.state, self.calls = RunState.ENDED, {}
            self._moved.set()
            self.log.show(entry)
        else:
            self._moved.clear()
            self.state, self.calls = RunState.WAITING, {call.id: call for call in event.calls}
            self.waiting_since = since
            self.log.show(entry)
            self._waits(self)
        self._meter.end_turn(event, self.agent, stopping=self._stopping)


def _ending(message: str) -> list[OutputEvent]:
    return [Error(message=message), SessionEnd(exit_code=1, stop_reason="error")]


def _failed(events: Sequence[OutputEvent], why: str) -> list[OutputEvent]:
    """The last events of a run that the gateway ends: its own reason instead of the agent's."""
    kept: list[OutputEvent] = [event for event in events if not isinstance(event, Error | Stderr | SessionEnd)]
    return [*kept, *_ending(why)] if any(isinstance(event, SessionEnd) for event in events) else kept
