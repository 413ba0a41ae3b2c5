"""Random commands and mishaps against sessions, on a real store, with agents that do what the test says.

What a client may rely on, whatever happens in whatever order:

* A refused request changes nothing: neither a stored row, nor what the session shows. Its message, its settings and its key are
  nowhere.
* A message that was accepted is in the log once, and no agent got it before it was stored.
* Each event has one number, and the numbers follow each other. A reader that follows the log, a reader that connects again with
  the number of its last event, and the store have the same events. What an agent has sent is there in its order, without a hole.
* A session has one run at a time, and each run has one end: in the log and in the rows of the runs, which agree at every moment.
* The stored messages are what the stored events complete, at every moment.
* Each agent that lives belongs to a session, which has no other. There are not more than `limits.live_agents`. If nobody stops an
  agent, it is at work for a run.
* The state of a session is that of its run. It is starting or ending only while a request has its lock.
* A queue advances as soon as the session is idle, unless it is stopped. A stored message is once in the queue or in the log, also
  after a kill.
* Nothing waits for ever: when the store works, all agents start and end their turns, and the client answers all calls, then each
  request gets its answer, each reader of a turn the end of it, and the daemon shuts down and leaves no task behind.
* A restart changes neither the history, nor the settings, nor the calls that wait for the client.

`make fuzz` runs this for minutes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from drivers.contract.agent import PermissionReply, Prompt, Reply, ToolReply
from drivers.contract.events import (
    AgentToken,
    AwaitedCall,
    Awaiting,
    Commands,
    Compacted,
    ContextUse,
    Error,
    Hook,
    MessageEnd,
    ModeChanged,
    NativeSession,
    OutputEvent,
    PermissionChoice,
    Plan,
    PlanEntry,
    RateLimit,
    SessionEnd,
    SlashCommand,
    Stdout,
    Thinking,
    Title,
    ToolCall,
    ToolResult,
    Usage,
)
from drivers.contract.messages import MESSAGE, Message, UserMessage
from gateway.errors import BadRequest, GatewayError, LeaseLost
from gateway.events.log_entries import LogEvent, decode
from gateway.events.turn_reader import Turn
from gateway.runs.idempotency import IdempotencyKey
from gateway.runs.recovery import UNSEEN
from gateway.runs.run import RunState
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.machine import State
from gateway.sessions.session import Session, Submission
from gateway.sessions.settings import SessionSettings, with_mode_option
from tests.gateway.sessions.machine.daemon import SETTINGS, Choices, OneDaemon, with_pace
from tests.gateway.sessions.machine.expectations import GATEWAYS_OWN, LogReader, Part, part_of
from tests.gateway.sessions.machine.scripted import Behaviour, ScriptedAgent, ScriptedDriver
from tests.gateway.sessions.machine.still_loop import StillLoop
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.sqlite_only

STATES_OF_RUN = {
    RunState.RUNNING: (State.RUNNING,),
    RunState.WAITING: (State.WAITING, State.SUSPENDED),
    RunState.ENDED: (State.IDLE,),
}
EXAMPLES, STEPS = 4, 40
"""Sequences of rules for each example of hypothesis' profile, and the most rules of one: some thousands in `make test`."""
DISASTERS = 4
"""Deletions, restarts, kills and lost leases in one sequence: each ends what the rules before it have begun."""
SLOTS = 2
"""Sessions at a time. With one slot for a live agent they compete for it."""
ROUNDS = 400
"""Seconds by the clock until each request must have been answered, once nothing fails any more."""
SLOT = st.integers(0, SLOTS - 1)
OUTPUT = st.lists(
    st.sampled_from(
        [
            "token", "token", "thinking", "end", "discarded", "discarded", "usage", "usage", "plan", "title", "commands", "line",
            "mode", "context", "limit", "native", "hook", "error", "tool", "compacted",
        ]
    ),
    min_size=1, max_size=4,
)  # fmt: skip
CALLS = st.lists(st.sampled_from(["look", "change", "change", "forbidden", "ask_user", "sky"]), min_size=1, max_size=3)
BEHAVIOURS: tuple[dict[str, Any], ...] = (
    {"start": "waits"},
    {"start": "waits"},
    {"start": "fails"},
    {"resumes": False},
    {"missed_prompts": 1},
    {"missed_prompts": 2},
    {"obeys": False},
    {"ends_slowly": True},
    {"steers": "refuses"},
    {"steers": "is full"},
    {"sets_mode": False},
)
SETTING = st.sampled_from(["kept", "kept", "kept", "pace", "mode", "wrong"])
ALWAYS = PermissionChoice(id="always", name="Always", kind="allow_always")
UNSTORED = ("native_id",)
"""Columns of sessions that a refused request may change: its agent was ended, and reported where it can be resumed."""
OF_AGENT = ("end_turn", "max_tokens", "refusal")
"""How only an agent ends its turn."""


@dataclass
class Sent:
    """A request of a client. `marks` is the text of its message, `pace` the setting that it brings."""

    kind: str
    slot: Slot
    mark: str | None = None
    pace: str | None = None
    key: str | None = None
    before: Any = None
    missed_prompts: int = 0
    """How many prompts had found no agent before it was sent."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[Any] | None = None
    error: Exception | None = None
    result: Any = None
    turn: Turn | None = None
    turn_read: asyncio.Task[list[LogEvent]] | None = None
    cut_off: bool = False
    """Its client was cancelled, or its daemon killed: what came of it is not known."""
    checked: bool = False
    queued: str | None = None
    """The text of a message that waits in the queue without its client."""
    removed: bool = False
    """Whether a client has removed it, or has tried to."""

    @property
    def done(self) -> bool:
        return self.task is None or self.task.done()

    async def run(self, work: Callable[[], Awaitable[Any]]) -> None:
        try:
            self.result = await work()
        except Exception as error:
            self.error = error

    @property
    def accepted(self) -> bool:
        return self.done and not self.cut_off and self.error is None

    @property
    def refused(self) -> bool:
        return self.done and not self.cut_off and self.error is not None


@dataclass
class Reader:
    """A client that follows a log from a number on."""

    after: int
    received: list[tuple[int, bytes]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    @property
    def last(self) -> int:
        return self.received[-1][0] if self.received else self.after

    async def follow(self, session: Session) -> None:
        with suppress(LeaseLost):
            while entries := await session.log.read(self.last):
                self.received += [(entry.seq, entry.data) for entry in entries]


@dataclass
class Stored:
    """What the store has of a session, and what its events tell (`log`)."""

    version: int
    events: dict[int, bytes]
    messages: list[Part]
    runs: list[tuple[Any, ...]]
    usage: list[tuple[Any, ...]]
    config: str | None
    log: LogReader

    def has_message(self, text: str) -> bool:
        return ("user", text) in self.messages


@dataclass
class Given:
    """A prompt that an agent got, with what the agent has sent for it. `mark` is None for one that goes on with the run."""

    mark: str | None
    sent: list[OutputEvent]


@dataclass
class Slot:
    """What a client knows of one session. `numbers` has each event that anybody has received, by its number."""

    session: Session
    numbers: dict[int, bytes] = field(default_factory=dict)
    never_again: set[int] = field(default_factory=set)
    """Numbers of events that were received and then lost with a killed daemon."""
    follower: Reader = field(default_factory=lambda: Reader(0))
    readers: list[Reader] = field(default_factory=list)
    requests: list[Sent] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    deleted: bool = False
    elsewhere: bool = False
    """Another node has its lease."""
    disturbed: bool = False
    """A daemon was killed, or the lease was lost, so that output may be missing."""
    stored: Stored | None = None

    @property
    def id(self) -> str:
        return self.session.id

    @property
    def usable(self) -> bool:
        return not self.deleted and not self.elsewhere


@lru_cache(maxsize=4096)
def decoded(data: bytes) -> LogEvent:
    return decode(data)


@lru_cache(maxsize=4096)
def message(body: str) -> Message:
    return MESSAGE.validate_json(body)


class SessionMachine(RuleBasedStateMachine):
    """See the sentences at the top of the module. Each rule is a command of a client, or something that happens."""

    # -- beginning and end ------------------------------------------------------------------------------------------------

    @initialize(
        choices=st.builds(
            Choices,
            leased=st.booleans(),
            stored_first=st.booleans(),
            seeds=st.booleans(),
            waits_for_limits=st.booleans(),
            live_agents=st.sampled_from([1, 2]),
            answer=st.sampled_from([0.0, 20.0]),
            sleep_after=st.sampled_from([0.0, 15.0]),
        )
    )
    def begin(self, choices: Choices) -> None:
        self.choices = choices
        self.folder = tempfile.TemporaryDirectory()
        self.loop, self.clock = StillLoop(), ManualClock()
        self.driver = ScriptedDriver(self.clock, choices.seeds)
        self.driver.prompted = self.note_prompt
        self.daemon = OneDaemon(Path(self.folder.name), self.loop, self.clock, self.driver, choices)
        self.daemon.start()
        self.number = itertools.count(1)
        self.slots: list[Slot] = []
        self.requests: list[Sent] = []
        self.failing, self.disasters = False, 0
        for _ in range(SLOTS):
            self.slots.append(self.new_slot())

    def new_slot(self) -> Slot:
        create = self.daemon.sessions.create(ADMINISTRATOR, self.daemon.agent, SETTINGS, [])
        slot = Slot(self.loop.done(create))
        self.connect(slot, slot.follower)
        return slot

    def teardown(self) -> None:
        if not hasattr(self, "slots"):
            return
        try:
            # Where a step has failed, its failure is the one to be reported.
            if sys.exc_info()[0] is None:
                self.finish()
        finally:
            self.daemon.close()
            self.loop.cancel_all()
            self.loop.close()
            self.folder.cleanup()

    def finish(self) -> None:
        """Let everything go well from now on, and check that nothing waits any more."""
        self.repair_store()
        self.driver.behaviour = Behaviour()
        for slot in self.slots:
            if slot.elsewhere:
                self.lease_comes_back(slot)
        for _ in range(ROUNDS):
            self.go_on()
            for slot in self.slots:
                if slot.usable and slot.session.queue.stopped is not None:
                    self.queue_goes_on(self.slots.index(slot))
            if all(sent.done for sent in self.requests) and all(self.is_idle(slot) for slot in self.slots):
                break
        for sent in self.requests:
            assert sent.done, f"the request {sent.kind} {sent.mark or ''} is never answered"
        for slot in self.slots:
            assert slot.session.state == "idle" or not slot.usable, f"the session stays {slot.session.state}"
            assert slot.session.queue.empty or not slot.usable, "messages stay in the queue"
            for sent in slot.requests:
                assert sent.turn_read is None or sent.turn_read.done(), f"a reader never gets the end of the turn of {sent.mark}"
        self.restart()
        self.check()
        self.daemon.shut_down()
        self.stop_readers()
        left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        assert not left, f"tasks are left behind: {left}"
        assert not self.driver.alive(), "agents outlive the daemon"

    @staticmethod
    def is_idle(slot: Slot) -> bool:
        return slot.session.state == "idle" and (slot.session.queue.empty or not slot.usable)

    def go_on(self) -> None:
        """Let a second pass in which all agents start, end their turns and get the answers that they wait for."""
        for gate in self.driver.starting:
            gate.done() or gate.set_result(True)
        for agent in self.agents("running"):
            self.happens(agent.send, SessionEnd(exit_code=0))
        for slot in self.slots:
            if slot.usable and slot.session.state == "waiting":
                self.send_answers(slot, self.answers(slot, granted=True))
        self.pass_time(1.0)
        self.check()

    # -- turns as they usually are: the other rules disturb them ----------------------------------------------------------

    @precondition(lambda self: self.idle)
    @rule(kinds=OUTPUT, names=CALLS, until=st.sampled_from(["at work", "waits", "waits", "over", "over"]))
    def turn(self, kinds: list[str], names: list[str], until: str) -> None:
        n = self.idle[0]
        self.send_message(n, "kept", keyed=True)
        self.check()
        if (agent := self.agent_of(n)) is not None:
            self.happens(agent.send, *itertools.chain.from_iterable(map(self.events_of, kinds)))
            self.check()
        if (agent := self.agent_of(n)) is not None and until == "waits":
            self.let_call(agent, names)
        elif agent is not None and until == "over":
            self.happens(agent.send, SessionEnd(exit_code=0))

    @precondition(lambda self: self.store_works)
    @rule(n=SLOT, settings=SETTING)
    def turn_that_cannot_be_stored(self, n: int, settings: str) -> None:
        """A message, or the answers to pending calls, which the store refuses."""
        slot = self.slots[n]
        self.daemon.store.faults.fail("runs.start", times=1)
        self.daemon.store.faults.fail("runs.resume", times=1)
        if slot.session.state == "waiting":
            self.send_answers(slot, self.answers(slot, granted=True), settings)
        else:
            self.send_message(n, settings, keyed=True)
        self.check()
        self.daemon.store.faults.clear()

    @property
    def idle(self) -> list[int]:
        """The sessions that a turn can begin in."""
        return [n for n, slot in enumerate(self.slots) if slot.usable and slot.session.accepts_turn]

    @property
    def at_work(self) -> bool:
        """Whether a session works, waits, or changes."""
        return any(not slot.session.accepts_turn for slot in self.slots if slot.usable)

    def agent_of(self, n: int) -> ScriptedAgent | None:
        """The agent of a session that is at work."""
        return next((agent for agent in self.agents("running") if agent.session_id == self.slots[n].id), None)

    def one_in(self, n: int, state: str) -> Slot:
        """A session in this state, or any if there is none."""
        return next((slot for slot in self.slots if slot.usable and slot.session.state == state), self.slots[n])

    # -- commands of clients ----------------------------------------------------------------------------------------------

    @rule(n=SLOT, settings=SETTING, keyed=st.booleans(), cancel_pending=st.booleans(), cancel_on_disconnect=st.booleans())
    def message(self, n: int, settings: str, keyed: bool, cancel_pending: bool, cancel_on_disconnect: bool) -> None:
        self.send_message(n, settings, keyed=keyed, cancel_pending=cancel_pending, cancel_on_disconnect=cancel_on_disconnect)

    @rule(n=SLOT, settings=SETTING, keyed=st.booleans())
    def message_that_queues(self, n: int, settings: str, keyed: bool) -> None:
        self.send_message(n, settings, keyed=keyed, when_busy="queue", cancel_on_disconnect=True)

    @rule(n=SLOT)
    def message_without_client(self, n: int) -> None:
        slot = self.slots[n]
        sent = Sent("queue", slot, queued=f"<m{next(self.number)}>")
        submission = Submission(message=UserMessage(content=str(sent.queued)), when_busy="queue")
        self.send(sent, partial(slot.session.enqueue, submission))

    @rule(n=SLOT)
    def queue_goes_on(self, n: int) -> None:
        self.send(Sent("go on", self.slots[n]), self.slots[n].session.queue.go_on)

    @rule(n=SLOT)
    def queue_is_changed(self, n: int) -> None:
        """The last message becomes the first."""
        queue = self.slots[n].session.queue
        ids = [message.id for message in queue.messages]
        self.send(Sent("reorder", self.slots[n]), partial(queue.reorder, [*ids[-1:], *ids[:-1]]))

    @rule(n=SLOT)
    def queued_message_is_removed(self, n: int) -> None:
        slot = self.slots[n]
        for message in slot.session.queue.messages[-1:]:
            for sent in slot.requests:
                sent.removed |= sent.queued == message.message.content
            self.send(Sent("remove", slot), partial(slot.session.queue.remove, message.id))

    @rule(n=SLOT, settings=SETTING, keyed=st.booleans())
    def message_that_steers(self, n: int, settings: str, keyed: bool) -> None:
        self.send_message(self.slots.index(self.one_in(n, "running")), settings, keyed=keyed, when_busy="steer")

    def send_message(self, n: int, settings: str, *, keyed: bool, **fields: Any) -> None:
        slot = self.slots[n]
        sent = Sent("message", slot, f"<m{next(self.number)}>")
        submission = Submission(
            message=UserMessage(content=sent.mark),
            settings=self.new_settings(sent, settings),
            key=self.key(sent) if keyed else None,
            disconnected=sent.gone.wait,
            **fields,
        )
        self.send(sent, partial(self.submit, sent, submission))

    @precondition(lambda self: self.at_work)
    @rule(
        n=SLOT,
        how=st.sampled_from(["granted", "granted", "denied", "chosen", "missing", "unknown", "twice"]),
        settings=st.sampled_from(["kept", "kept", "pace", "wrong"]),
    )
    def answer(self, n: int, how: str, settings: str) -> None:
        slot = self.one_in(n, "waiting")
        replies = self.answers(slot, granted=how != "denied")
        if how == "missing":
            replies = replies[1:]
        elif how == "chosen":
            replies = [replace(one, choice=ALWAYS.id) if isinstance(one, PermissionReply) else one for one in replies]
        elif how == "unknown":
            replies = [*replies, PermissionReply("no such call", "allow")]
        elif how == "twice":
            replies = [*replies, *replies]
        self.send_answers(slot, replies, settings)

    def send_answers(self, slot: Slot, replies: Sequence[Reply], settings: str = "kept") -> None:
        sent = Sent("answers", slot)
        submission = Submission(replies=replies, settings=self.new_settings(sent, settings), key=self.key(sent))
        self.send(sent, partial(self.submit, sent, submission))

    @precondition(lambda self: self.at_work)
    @rule(n=SLOT)
    def steer(self, n: int) -> None:
        slot = self.one_in(n, "running")
        sent = Sent("steer", slot, f"<m{next(self.number)}>")

        async def steer() -> None:
            if not await slot.session.steer(UserMessage(content=sent.mark)):
                raise BadRequest("not steered")

        self.send(sent, steer)

    @precondition(lambda self: self.at_work)
    @rule(n=SLOT)
    def cancel(self, n: int) -> None:
        slot = self.slots[n]
        self.send(Sent("cancel", slot), slot.session.cancel)

    @precondition(lambda self: self.at_work)
    @rule(n=SLOT, waiting=st.booleans())
    def cancel_last_turn(self, n: int, waiting: bool) -> None:
        """The client of a turn disconnects, and wants no turn without itself."""
        slot = self.slots[n]
        turns = [sent.turn for sent in slot.requests if sent.turn is not None]
        if turns:
            self.send(Sent("cancel", slot), partial(slot.session.cancel, turns[-1], waiting=waiting))

    @rule(n=SLOT, what=st.sampled_from(["pace", "mode"]))
    def configure(self, n: int, what: str) -> None:
        slot = self.slots[n]
        sent = Sent("configure", slot)
        change = self.new_settings(sent, what)
        assert change is not None

        async def configure() -> None:
            async with slot.session.lock:
                await slot.session.configure(change(slot.session.config))

        self.send(sent, configure)

    @rule(n=SLOT)
    def rename(self, n: int) -> None:
        slot = self.slots[n]
        self.send(Sent("rename", slot), partial(slot.session.rename, f"title {next(self.number)}"))

    @rule(n=SLOT)
    def prepare(self, n: int) -> None:
        slot = self.slots[n]
        self.send(Sent("prepare", slot), slot.session.prepare)

    @rule(n=SLOT)
    def end_agent(self, n: int) -> None:
        slot = self.slots[n]
        self.send(Sent("end_agent", slot), partial(slot.session.end_agent, "the agent was ended on request"))

    @rule(n=SLOT)
    def evict(self, n: int) -> None:
        if self.slots[n].session.eviction_order is not None:
            self.happens(self.slots[n].session.evict)

    @precondition(lambda self: self.disasters < DISASTERS)
    @rule(n=SLOT)
    def delete(self, n: int) -> None:
        slot = self.slots[n]
        self.disasters += 1
        self.send(Sent("delete", slot), partial(self.daemon.sessions.delete, ADMINISTRATOR, slot.id))

    @precondition(lambda self: any(slot.deleted for slot in self.slots) and self.store_works)
    @rule()
    def create(self) -> None:
        n = next(n for n, slot in enumerate(self.slots) if slot.deleted)
        self.slots[n] = self.new_slot()

    # -- clients come and go ----------------------------------------------------------------------------------------------

    @precondition(lambda self: any(not sent.done for sent in self.requests))
    @rule()
    def client_disconnects(self) -> None:
        """The client of a request goes away, which is told by `disconnected`."""
        next(sent for sent in self.requests if not sent.done).gone.set()

    @precondition(lambda self: any(not sent.done for sent in self.requests))
    @rule()
    def request_is_cancelled(self) -> None:
        sent = next(sent for sent in self.requests if not sent.done)
        sent.cut_off = True
        assert sent.task is not None
        sent.task.cancel()

    @rule(n=SLOT, again=st.booleans())
    def reader_connects(self, n: int, again: bool) -> None:
        """A reader begins with the first event, or goes on behind the last that another one has."""
        slot = self.slots[n]
        if slot.usable and len(slot.readers) < 4:
            reader = Reader(slot.readers[-1].last if again and slot.readers else 0)
            slot.readers.append(reader)
            self.connect(slot, reader)

    @precondition(lambda self: any(slot.readers for slot in self.slots))
    @rule()
    def reader_disconnects(self) -> None:
        slot = next(slot for slot in self.slots if slot.readers)
        assert slot.readers[-1].task is not None
        slot.readers[-1].task.cancel()

    # -- agents -----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.agents("running"))
    @rule(kinds=OUTPUT, n=SLOT)
    def agent_sends(self, kinds: list[str], n: int) -> None:
        agents = self.agents("running")
        self.happens(agents[n % len(agents)].send, *itertools.chain.from_iterable(map(self.events_of, kinds)))

    @precondition(lambda self: self.agents("idle"))
    @rule(kind=st.sampled_from(["token", "title", "commands", "mode", "line"]))
    def agent_sends_between_turns(self, kind: str) -> None:
        self.happens(self.agents("idle")[0].send, *self.events_of(kind))

    @precondition(lambda self: self.agents("running"))
    @rule(names=CALLS)
    def agent_calls(self, names: list[str]) -> None:
        self.let_call(self.agents("running")[0], names)

    def let_call(self, agent: ScriptedAgent, names: list[str]) -> None:
        """Let an agent call tools, and wait for the answers."""
        calls = [ToolCall(id=f"c{next(self.number)}", name=name, status="started", input={}) for name in names]
        wants: dict[str, Any] = {"ask_user": "answer", "sky": "result"}
        awaited = [
            AwaitedCall(id=call.id, wants=wants.get(call.name, "permission"), choices=(ALWAYS,) if call.name == "change" else ())
            for call in calls
        ]
        self.happens(agent.send, *calls, Awaiting(calls=tuple(awaited)))

    @precondition(lambda self: self.agents("running"))
    @rule(how=st.sampled_from(["end_turn", "end_turn", "max_tokens", "error", "usage limit"]), n=SLOT)
    def agent_ends_turn(self, how: Any, n: int) -> None:
        agents = self.agents("running")
        if how == "usage limit":
            limit = Error(message="out of tokens", resets_at=self.clock.time() + 20.0)
            self.happens(agents[n % len(agents)].send, limit, SessionEnd(exit_code=1, stop_reason="error"))
        else:
            errors = [Error(message="it failed")] if how == "error" else []
            end = SessionEnd(exit_code=int(how == "error"), stop_reason=how)
            self.happens(agents[n % len(agents)].send, *errors, end)

    @precondition(lambda self: self.driver.alive())
    @rule(n=SLOT)
    def agent_exits(self, n: int) -> None:
        agents = self.driver.alive()
        self.happens(agents[n % len(agents)].exit)

    @rule(change=st.sampled_from(BEHAVIOURS))
    def agents_behave_otherwise(self, change: dict[str, Any]) -> None:
        self.driver.behaviour = replace(self.driver.behaviour, **change)

    @precondition(lambda self: self.driver.behaviour != Behaviour())
    @rule()
    def agents_behave_well(self) -> None:
        self.driver.behaviour = Behaviour()

    @precondition(lambda self: self.driver.starting)
    @rule(starts=st.booleans())
    def agent_starts(self, starts: bool) -> None:
        gate = self.driver.starting[0]
        gate.done() or gate.set_result(starts)

    # -- the store --------------------------------------------------------------------------------------------------------

    @rule(
        writes=st.sampled_from(
            [
                "*", "runs.start", "runs.stop", "runs.resume", "events.append", "sessions.*", "idempotency_keys.*",
                "session_metadata.*", "audit.*",
            ]
        ),
        how=st.sampled_from(
            ["fail once", "fail once", "fail", "fail, but are done", "are slow", "are lost", "are done, perhaps"]
        ),
    )  # fmt: skip
    def store_has_trouble(self, writes: str, how: str) -> None:
        """Its next writes fail, also where the disk has the events all the same. They take their time. Or it does not say whether
        the next commit is done."""
        if how == "are slow":
            self.daemon.writer.held = True
        elif how in ("are lost", "are done, perhaps"):
            self.daemon.commits.next = how == "are done, perhaps"
        else:
            self.failing = True
            committed = how == "fail, but are done"
            writes = "events.append" if committed else writes
            self.daemon.store.faults.fail(writes, times=None if how == "fail" else 1, committed=committed)

    @precondition(lambda self: not self.store_works)
    @rule()
    def repair_store(self) -> None:
        self.failing = False
        self.daemon.store.faults.clear()
        self.daemon.commits.next, self.daemon.commits.unanswered = None, False
        self.daemon.writer.release()

    # -- time, other nodes, and the daemon itself -------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.3, 1.0, 2.0, 6.0, 35.0]))
    def pass_time(self, seconds: float) -> None:
        self.loop.settle()
        while seconds > 0:
            step = min(seconds, 1.0)
            self.loop.run_until_complete(self.clock.advance(step))
            self.loop.settle()
            seconds -= step

    @precondition(lambda self: self.choices.leased and self.disasters < DISASTERS)
    @rule(n=SLOT, stopped=st.booleans())
    def other_node_takes_the_session(self, n: int, stopped: bool) -> None:
        """This node was stopped for longer than its leases, or does not know yet that it has lost one."""
        slot = self.slots[n]
        lease = slot.session.lease
        if slot.usable and lease is not None and not self.daemon.writer.held:
            self.disasters += 1
            self.daemon.give_away(slot.id)
            lease.stale = stopped
            slot.elsewhere = slot.disturbed = True

    @precondition(lambda self: self.store_works and any(slot.elsewhere for slot in self.slots))
    @rule()
    def leases_come_back(self) -> None:
        for slot in self.slots:
            if slot.elsewhere:
                self.lease_comes_back(slot)

    def lease_comes_back(self, slot: Slot) -> None:
        """The other node has ended what was at work, and releases the session."""
        lease = slot.session.lease
        assert lease is not None
        self.happens(lease.lose)
        self.pass_time(2.0)
        self.daemon.take_back(slot.id)
        slot.elsewhere = False
        self.reload(slot, lost=True)

    @precondition(lambda self: self.store_works and self.disasters < DISASTERS)
    @rule()
    def restart(self) -> None:
        """The daemon is shut down and started again."""
        self.disasters += 1
        quiet = [slot for slot in self.slots if slot.usable and self.settled(slot) and slot.session.state != "running"]
        # The next daemon goes on with a queue.
        quiet = [slot for slot in quiet if self.has_stored_settings(slot) and not slot.session.queue.goes_on]
        before = {slot.id: self.view(slot) for slot in quiet}
        self.daemon.shut_down()
        self.begin_again()
        for slot in self.slots:
            if slot.id in before:
                assert (found := self.view(slot)) == before[slot.id], f"a restart has changed {before[slot.id]} to {found}"

    @property
    def numbers_may_return(self) -> bool:
        """Whether a kill would let a number be given twice: test_found_sequences.py has that, as a failure that is expected."""
        return any(slot.session.state == "waiting" and slot.session.log.unwritten > 0 for slot in self.slots)

    @precondition(lambda self: self.disasters < DISASTERS and not self.numbers_may_return)
    @rule()
    def kill(self) -> None:
        self.disasters += 1
        for sent in self.requests:
            if not sent.done:
                sent.cut_off = True
        self.stop_readers()
        self.daemon.kill()
        for agent in self.driver.alive():
            agent.phase = "gone"
        for slot in self.slots:
            slot.disturbed = True
        self.begin_again()

    def begin_again(self) -> None:
        self.stop_readers()
        assert not self.driver.alive(), "an agent outlives its daemon"
        self.failing = False
        self.daemon.start()
        for n, slot in enumerate(self.slots):
            if slot.elsewhere and not slot.deleted:
                self.daemon.take_back(slot.id)
                slot.elsewhere = False
            if self.stored(slot).config is None:
                assert any(sent.kind == "delete" for sent in slot.requests), "a session is gone that nobody has deleted"
                self.slots[n] = self.new_slot()
            else:
                self.reload(slot, lost=slot.disturbed)

    def reload(self, slot: Slot, *, lost: bool) -> None:
        """Get a session anew, and let its readers connect again."""
        self.note_received(slot)
        self.daemon.sessions._known.pop(slot.id, None)
        slot.session = self.loop.done(self.daemon.sessions.get(ADMINISTRATOR, slot.id))
        if lost:
            stored = self.stored(slot).events
            slot.never_again |= slot.numbers.keys() - stored.keys()
            slot.numbers = {**stored}
        for reader in [slot.follower, *slot.readers]:
            if reader.task is not None:
                reader.task.cancel()
        last = max(slot.numbers, default=0)
        slot.readers = []
        slot.follower = Reader(last)
        self.connect(slot, slot.follower)

    def happens(self, what: Callable[..., object], *arguments: Any) -> None:
        """Let something happen in the event loop, before all that waits there."""
        self.loop.call_soon(what, *arguments)

    # -- requests ---------------------------------------------------------------------------------------------------------

    def send(self, sent: Sent, work: Callable[[], Awaitable[Any]]) -> None:
        """Begin a request. If nothing else is under way, all that is stored and shown is kept, for a refusal."""
        self.loop.settle()
        slot, sent.missed_prompts = sent.slot, self.driver.missed_prompts
        if slot.usable and self.settled(slot):
            sent.before = self.everything(slot)
        sent.task = self.loop.create_task(sent.run(work))
        if sent.before is not None:
            self.loop.settle()
            if sent.done:
                self.check_alone(sent)
        slot.requests.append(sent)
        self.requests = [*(one for one in self.requests if not one.done or not one.checked), sent]

    async def submit(self, sent: Sent, submission: Submission) -> None:
        turn = await sent.slot.session.submit(submission)
        sent.turn, sent.turn_read = turn, self.loop.create_task(read_turn(turn))

    def new_settings(self, sent: Sent, which: str) -> Callable[[SessionSettings], SessionSettings] | None:
        if which == "wrong":
            sent.pace = f"p{next(self.number)}"

            def refuse(settings: SessionSettings) -> SessionSettings:
                raise BadRequest("no such setting")

            return refuse
        if which == "pace":
            sent.pace = pace = f"p{next(self.number)}"
            return lambda settings: with_pace(settings, pace)
        return (lambda settings: with_mode_option(settings, "auto")) if which == "mode" else None

    def key(self, sent: Sent) -> IdempotencyKey:
        sent.key = f"key-{next(self.number)}"
        return IdempotencyKey(sent.key, "digest")

    def answers(self, slot: Slot, *, granted: bool) -> list[Reply]:
        """The answers to the calls that the session shows, in the way that each of them wants."""
        replies: list[Reply] = []
        for call in slot.session.pending_calls:
            if call.wants == "permission" or not granted:
                replies.append(PermissionReply(call.id, "allow" if granted else "deny"))
            else:
                replies.append(ToolReply(call.id, f"the answer to {call.id}"))
        return replies

    def connect(self, slot: Slot, reader: Reader) -> None:
        reader.task = self.loop.create_task(reader.follow(slot.session))

    def stop_readers(self) -> None:
        for slot in self.slots:
            for reader in [slot.follower, *slot.readers]:
                if reader.task is not None:
                    reader.task.cancel()
            for sent in slot.requests:
                if sent.turn_read is not None:
                    sent.turn_read.cancel()
                    sent.turn_read = None
        self.loop.settle()

    # -- events of agents -------------------------------------------------------------------------------------------------

    def agents(self, phase: str) -> list[ScriptedAgent]:
        return [agent for agent in self.driver.alive() if agent.phase == phase]

    def events_of(self, kind: str) -> Iterator[OutputEvent]:
        n = next(self.number)
        one: dict[str, OutputEvent] = {
            "token": AgentToken(text=f"text {n}"),
            "thinking": Thinking(text=f"thought {n}"),
            "end": MessageEnd(),
            "discarded": MessageEnd(discarded=True),
            "usage": Usage(input_tokens=n, output_tokens=1),
            "plan": Plan(entries=(PlanEntry(content=f"step {n}"),)),
            "title": Title(text=f"title {n}"),
            "commands": Commands(commands=(SlashCommand(name=f"command{n}"),)),
            "line": Stdout(line=f"line {n}"),
            "mode": ModeChanged(mode="auto" if n % 2 else "ask"),
            "context": ContextUse(used=n, size=100_000),
            "limit": RateLimit(status="warning", limit=f"limit {n}"),
            "native": NativeSession(native_id=None, model=f"model {n}"),
            "hook": Hook(id=f"hook {n}", name="hook", status="started"),
            "error": Error(message=f"error {n}"),
            "compacted": Compacted(summary=f"summary {n}"),
        }
        if kind == "tool":
            yield ToolCall(id=f"c{n}", name="look", status="started", input={})
            yield ToolResult(tool_call_id=f"c{n}", output=f"found {n}")
            yield ToolCall(id=f"c{n}", name="look", status="completed")
        else:
            yield one[kind]

    def note_prompt(self, agent: ScriptedAgent, prompt: Prompt) -> None:
        """An agent is about to get a prompt: it must be stored, and the agent must know nothing that is not."""
        slot = next(slot for slot in self.slots if slot.id == agent.session_id)
        slot.given.append(Given(None if prompt.go_on else prompt.text, agent.sent[-1]))
        known = [text for text in agent.told if text.startswith("<m")] + ([] if prompt.go_on else [prompt.text])
        if unknown := [text for text in known if not self.stored(slot).has_message(text)]:
            self.driver.violations.append(f"an agent knows messages that are not stored: {unknown}")

    @property
    def store_works(self) -> bool:
        commits = self.daemon.commits
        return not (self.failing or self.daemon.writer.held or commits.unanswered or commits.next is not None)

    # -- what is stored and shown -----------------------------------------------------------------------------------------

    def settled(self, slot: Slot) -> bool:
        """Whether nothing is under way."""
        return (
            all(sent.done for sent in self.requests)
            and not self.daemon.writer.held
            and not slot.session.lock.locked()
            and not slot.session.log.unwritten
        )

    def has_stored_settings(self, slot: Slot) -> bool:
        """Not where the CLI has changed the mode and that could not be stored."""
        config = self.stored(slot).config
        return config is not None and json.loads(config)["options"] == slot.session.config.options

    def view(self, slot: Slot) -> tuple[Any, ...]:
        """What a client sees of a session that is not at work."""
        session = slot.session
        pending = sorted((call.id, call.name, call.wants) for call in session.pending_calls)
        return session.config, session.state, pending, session.log.last

    def everything(self, slot: Slot) -> dict[str, Any]:
        """All rows, by their tables, and what the session shows."""
        named = [name for _, name, *_ in self.daemon.execute("PRAGMA table_info(sessions)") if name not in UNSTORED]
        tables = (
            "messages",
            "runs",
            "events",
            "failures",
            "session_usage",
            "idempotency_keys",
            "session_metadata",
            "audit",
            "queued_messages",
        )
        found: dict[str, Any] = {table: self.daemon.execute(f"SELECT * FROM {table}") for table in tables}
        session = slot.session
        found["sessions"] = self.daemon.execute(f"SELECT {', '.join(named)} FROM sessions")
        found["shown"] = self.view(slot), len(session.queue)
        return found

    def stored(self, slot: Slot) -> Stored:
        version = self.daemon.stored_version
        if slot.stored is None or slot.stored.version != version:
            slot.stored = self.read_stored(slot.id, version)
        return slot.stored

    def read_stored(self, session_id: str, version: int) -> Stored:
        def rows(query: str) -> list[tuple[Any, ...]]:
            return self.daemon.execute(query, {"id": session_id})

        events: dict[int, bytes] = {}
        for first, last, body in rows("SELECT first, last, body FROM events WHERE log_id = :id ORDER BY first"):
            lines = body.split(b"\n")
            assert len(lines) == last - first + 1, "a row has another number of events than it says"
            events |= dict(enumerate(lines, first))
        return Stored(
            version,
            events,
            [part_of(message(body)) for (body,) in rows("SELECT body FROM messages WHERE session_id = :id ORDER BY position")],
            rows("SELECT first_seq, state, stop_reason FROM runs WHERE log_id = :id ORDER BY first_seq"),
            rows("SELECT input_tokens, output_tokens FROM session_usage WHERE session_id = :id"),
            next((row for (row,) in rows("SELECT config FROM sessions WHERE id = :id")), None),
            LogReader().read((seq, decoded(data)) for seq, data in events.items()),
        )

    def note_received(self, slot: Slot) -> None:
        """Take what readers have received into `numbers`, if they agree."""
        for reader in [slot.follower, *slot.readers]:
            expected = reader.after + 1
            for seq, data in reader.received:
                assert seq == expected or seq - expected >= UNSEEN, f"a reader got event {seq} where {expected} was to come"
                assert seq not in slot.never_again, f"the number {seq} was given to two events"
                assert slot.numbers.setdefault(seq, data) == data, f"two readers got different events {seq}"
                expected = seq + 1

    # -- what must hold after each step -----------------------------------------------------------------------------------

    @invariant()
    def check(self) -> None:
        self.loop.settle()
        if self.daemon.commits.unanswered:
            # The store is asked once more, and other writes fail.
            self.daemon.writer.call_one()
            self.loop.settle()
        assert not self.driver.violations, self.driver.violations
        for slot in self.slots:
            if slot.usable:
                slot.deleted = slot.session.deleted
        for sent in self.requests:
            if sent.done and not sent.checked:
                sent.checked = True
                self.check_answered(sent)
        at_rest = [agent for agent in self.driver.alive() if not agent.ending]
        assert len(at_rest) <= self.choices.live_agents, "more agents live than may"
        for slot in self.slots:
            self.note_received(slot)
            self.check_agents(slot)
            if slot.usable and self.stored(slot).config is None:
                # It is not known yet here.
                assert any(sent.kind == "delete" for sent in slot.requests), "a session is gone that nobody has deleted"
            elif slot.usable:
                self.check_log(slot)
                self.check_state(slot)
                self.check_queue(slot)

    def check_answered(self, sent: Sent) -> None:
        if sent.cut_off:
            return
        error = sent.error
        assert error is None or isinstance(error, GatewayError), f"the request {sent.kind} failed: {error!r}"

    def check_alone(self, sent: Sent) -> None:
        """Check a request that nothing else has come between."""
        if sent.error is None:
            self.check_done(sent)
        elif not self.began_all_the_same(sent):
            after = self.everything(sent.slot)
            changed = {name: (sent.before[name], after[name]) for name in after if after[name] != sent.before[name]}
            assert not changed, f"the refused request {sent.kind} ({sent.error!r}) has changed {changed}"

    def check_done(self, sent: Sent) -> None:
        """What a request promises."""
        session = sent.slot.session
        if sent.kind == "cancel" and sent.result:
            assert session.state == "idle", "the session is not idle after a cancel"
        elif sent.kind == "end_agent" and not any(one.queued for one in sent.slot.requests):
            assert session.live is None, "the agent was not ended"
        elif sent.pace is not None:
            assert session.config.options["pace"] == sent.pace, "the new settings are not in force"

    def began_all_the_same(self, sent: Sent) -> bool:
        """Whether the turn of a refused request is stored: its agent was ready, and had ended when it was to take the prompt."""
        missed = self.driver.missed_prompts > sent.missed_prompts
        return (missed and sent.mark is None) or (sent.mark is not None and self.stored(sent.slot).has_message(sent.mark))

    def check_agents(self, slot: Slot) -> None:
        alive = [agent for agent in self.driver.alive(slot.id) if not agent.ending]
        assert len(alive) <= 1, f"a session has {len(alive)} agents"
        for agent in alive:
            if slot.deleted or slot.session.lost:
                assert slot.session.lock.locked(), "an agent lives on without its session"
            assert agent is slot.session.live, "nobody knows of an agent"
            if agent.in_turn and not agent.interrupted and slot.usable:
                assert slot.session.state != "idle", "an agent is at work without a run"

    def check_state(self, slot: Slot) -> None:
        session, run = slot.session, slot.session.run
        of_run = run.state if run is not None else RunState.ENDED
        assert session.machine.of_run in STATES_OF_RUN[of_run], f"the session is {session.machine.of_run}, its run {of_run}"
        if not session.lock.locked():
            assert session.machine.state in (session.machine.of_run, State.GONE), f"{session.machine.state} without a request"

    def check_queue(self, slot: Slot) -> None:
        session = slot.session
        if session.state == "idle" and not session.lock.locked():
            waits = session.queue._retry is not None
            assert waits or not session.queue.goes_on, "messages are queued although the session is idle"

    def check_log(self, slot: Slot) -> None:
        """The numbers that readers have got, the stored ones, and what both tell."""
        stored = self.stored(slot)
        for seq, data in stored.events.items():
            assert slot.numbers.get(seq, data) == data, f"the store has another event {seq} than the readers"
            assert seq not in slot.never_again, f"the number {seq} was given to two events"
        published = LogReader().read((seq, decoded(data)) for seq, data in sorted(slot.numbers.items()))
        assert not published.problems, published.problems
        assert not stored.log.problems, stored.log.problems
        self.check_rows(slot, stored)
        self.check_output(slot, published)
        self.check_markers(slot, stored, published)
        session = slot.session
        if self.store_works and not session.log.unwritten:
            last = max(stored.events, default=0)
            missing = sorted(stored.events.keys() ^ slot.numbers.keys())
            assert not missing, f"either the readers or the store lack the events {missing}"
            assert last == session.log.last, "the log has another last number than the store"
            assert stored.log.state == session.state, f"the log says {stored.log.state}, the session {session.state}"

    def check_rows(self, slot: Slot, stored: Stored) -> None:
        """The stored messages, runs and usage are what the stored events tell."""
        log = stored.log
        assert stored.messages == log.messages, "the stored messages are not what the stored events complete"
        assert stored.runs == [(run.first, run.state, run.stop_reason) for run in log.runs], (
            "the stored runs are not those of the log"
        )
        if not slot.disturbed:
            used = (log.usage.input_tokens, log.usage.output_tokens)
            assert stored.usage == ([used] if any(used) else []), "the stored usage is not that of the turns"

    def check_output(self, slot: Slot, published: LogReader) -> None:
        """The events of each run are those that its agent has sent, in their order."""
        sent_of: dict[str, list[OutputEvent]] = {}
        mark = ""
        for given in slot.given:
            mark = given.mark or mark
            sent_of.setdefault(mark, []).extend(given.sent)
        for run in published.runs:
            first = run.events[0]
            mark = next(str(message.content) for message in first.messages)
            found = [event for event in run.events if not isinstance(event, GATEWAYS_OWN)]
            expected = [event for event in sent_of.get(mark, []) if not isinstance(event, GATEWAYS_OWN)]
            assert found == expected[: len(found)], f"the run of {mark} has {found}, its agent has sent {expected}"
            if run.stop_reason in OF_AGENT:
                assert found == expected, f"the run of {mark} has lost {expected[len(found) :]}"
                assert run.stop_reason == next(
                    event.stop_reason for event in reversed(sent_of[mark]) if isinstance(event, SessionEnd)
                )

    def check_markers(self, slot: Slot, stored: Stored, published: LogReader) -> None:
        """Accepted messages are there once, refused messages and settings are nowhere."""
        count = Counter(text for kind, text, *_ in published.messages if kind == "user")
        count.update(text for text in published.waiting_messages)
        config = json.dumps(dict(slot.session.config.options)) + (stored.config or "")
        keys = dict(self.daemon.execute("SELECT key, first_seq FROM idempotency_keys WHERE log_id = :id", {"id": slot.id}))
        waiting = self.daemon.execute("SELECT message FROM queued_messages WHERE session_id = :id", {"id": slot.id})
        count_of_queued = count + Counter(json.loads(message)["content"] for (message,) in waiting)
        for sent in slot.requests:
            if sent.queued is not None:
                found = count_of_queued[sent.queued]
                assert found <= 1, f"the queued message {sent.queued} is there {found} times"
                kept = sent.accepted and not sent.removed and not slot.disturbed and not self.choices.stored_first
                assert found or not kept, f"the queued message {sent.queued} is lost"
                assert not (found and sent.refused), f"the refused message {sent.queued} is there: {sent.error!r}"
            if sent.mark is not None:
                assert count[sent.mark] <= 1, f"the message {sent.mark} is there {count[sent.mark]} times"
                if sent.accepted and not slot.disturbed and not self.choices.stored_first:
                    assert count[sent.mark] == 1, f"the accepted message {sent.mark} is lost"
                if sent.refused and not self.began_all_the_same(sent):
                    assert count[sent.mark] == 0, f"the refused message {sent.mark} is there: {sent.error!r}"
                elif sent.refused:
                    run = next(run for run in stored.log.runs if run.begins_with(sent.mark))
                    assert run.state == "ended" or not self.store_works, f"the run of the refused message {sent.mark} goes on"
            if sent.key is not None and sent.accepted and not slot.disturbed:
                assert sent.key in keys, f"the key of the accepted {sent.kind} {sent.mark} is not stored"
            if sent.key is not None and sent.refused and not self.began_all_the_same(sent):
                assert sent.key not in keys, f"the key of the refused {sent.kind} {sent.mark} is stored"
            if sent.pace is not None and sent.refused and not self.began_all_the_same(sent):
                assert f'"{sent.pace}"' not in config, f"the refused setting {sent.pace} is there: {sent.error!r}"


async def read_turn(turn: Turn) -> list[LogEvent]:
    with suppress(LeaseLost):
        return [entry.event async for batch in turn.batches() for entry in batch]
    return []


TestSessions = pytest.mark.timeout(900)(SessionMachine.TestCase)
"""To make a failure shorter may take longer than other tests."""
TestSessions.settings = settings(
    max_examples=EXAMPLES * settings.default.max_examples,
    stateful_step_count=STEPS,
    deadline=None,
    # `make fuzz` has new sequences each time, all other runs the same ones.
    derandomize=settings.get_current_profile_name() != "fuzz",
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
