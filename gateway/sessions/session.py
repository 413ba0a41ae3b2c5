"""Session: one conversation with one agent. Its settings, its history, its live agent, and one run at a time."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Literal, Protocol

from drivers.contract.agent import Agent, Prompt
from drivers.contract.client_services import ClientServices
from drivers.contract.errors import AgentGone
from drivers.contract.messages import MESSAGE, Message, UserMessage
from gateway.agents.configured import ConfiguredAgent
from gateway.errors import BadRequest, Conflict, NotFound
from gateway.events.event_log import Entry, EventLog
from gateway.events.log_entries import TurnStart
from gateway.events.turn import Turn
from gateway.policy.decisions import Decision
from gateway.policy.enforcement import PolicyEnforcer
from gateway.runs.compaction import compacted
from gateway.runs.idempotency import IdempotencyKey
from gateway.runs.run import Run, RunState
from gateway.services import SharedServices
from gateway.sessions.approvals import PendingApprovals
from gateway.sessions.client_services import SessionServices
from gateway.sessions.live_agent import LiveAgent
from gateway.sessions.settings import SessionSettings
from gateway.sessions.turn_queue import TurnQueue
from gateway.store import KeyRecord, MessageRow, RunRecord, SessionRecord

CANCEL_GRACE = 0.6
"""Seconds that an agent has to end a run on request; then it is killed, and the native session resumed at the next turn."""


class Places(Protocol):
    """Who keeps count of the live agents and of the turns that run."""

    def entering(self, session: Session) -> AbstractContextManager[None]:
        """A place for a session's agent and for its turn, before anything changes. Raises TooMany."""

    def changed(self, session: Session) -> None:
        """A session has begun or ended something."""


class Session:
    """Made and found by `Sessions`. What changes it happens under its lock, one request after the other."""

    def __init__(
        self,
        record: SessionRecord,
        config: SessionSettings,
        agent: ConfiguredAgent,
        shared: SharedServices,
        places: Places,
        last_seq: int,
    ) -> None:
        self.id, self.created_at, self.owner = record.id, record.created_at, record.owner
        self.agent, self.config = agent, config
        self.log = EventLog(record.id, shared.store, last_seq)
        self.lock = asyncio.Lock()
        self.run: Run | None = None
        self.used_at = time.monotonic()
        self.turn_began = last_seq + 1
        self.deleted = False
        self.services = SessionServices()
        self._agent = LiveAgent(record.id, agent, record.native_id, shared, self.services)
        self._shared, self._places = shared, places
        self.open_calls = PendingApprovals(self, shared.answer_limit)
        self.line = TurnQueue(lambda: self.state == "idle" or self.deleted)

    @property
    def live(self) -> Agent | None:
        """Its agent's process, if there is one."""
        return self._agent.now

    @property
    def busy(self) -> bool:
        return self.run is not None and self.run.state is RunState.RUNNING

    @property
    def state(self) -> Literal["idle", "running", "waiting"]:
        """`idle`, `running`, or `waiting` for the client."""
        if self.run is None or self.run.state is RunState.ENDED:
            return "idle"
        return "waiting" if self.run.state is RunState.WAITING else "running"

    async def history(self) -> list[Message]:
        """All messages, exactly as they were given and made."""
        return [MESSAGE.validate_json(body) for body in await self._shared.store.messages.bodies(self.id)]

    async def compacted_history(self) -> list[Message]:
        """What the agent still works from: all messages, or what its CLI has left of them and what came after."""
        compaction = await self._shared.store.compactions.get(self.id)
        return compacted(await self.history(), compaction)

    def refuse_if_busy(self, *, in_line: bool = False) -> None:
        """Raises Conflict while a run is at work or others wait in line, NotFound once the session is deleted."""
        if self.deleted:
            raise NotFound(f"session {self.id!r} was deleted")
        if self.busy:
            raise Conflict("this session is at work on a turn; wait for its turn_stop, then send this again")
        if not in_line and not self.line.empty and self.state == "idle":
            raise Conflict("other messages wait for this session; send this again with when_busy: queue")

    def entering(self) -> AbstractContextManager[None]:
        """A place for a turn, held until it runs or has failed; whoever changes something for it enters first. Raises TooMany."""
        return self._places.entering(self)

    async def configure(self, config: SessionSettings) -> None:
        """Replace the settings, for the session's life. Call it under the lock."""
        if config == self.config:
            return
        self._shared.redactor.register(config.hidden)
        sealed = self._shared.encryption.encrypt(config.sealed)
        await self._shared.store.sessions.update(self.id, config=config.to_json(), secrets=sealed)
        self.config = config
        # The CLI took its settings when it started; before the next run a fresh process resumes the native session.
        self._agent.outdated = True

    async def steer(self, message: UserMessage, ask: IdempotencyKey | None = None) -> Turn:
        """Say something to the agent at work; the rest of its turn. Call it under the lock. Raises BadRequest, Conflict."""
        if not self.agent.info.steers:
            raise BadRequest(
                f"when_busy: agent {self.agent.name!r} cannot be told anything while it works; queue can wait for it"
            )
        seq = await self.run.steer(message) if self.run is not None else None
        if seq is None:
            raise Conflict("the run cannot be told anything just now: it begins or ends; send this again")
        if ask is not None:
            await self._shared.store.idempotency_keys.add(ask.record(self.id, seq))
        return self.turn_from(seq)

    async def say(self, message: UserMessage, ask: IdempotencyKey | None = None, client: ClientServices | None = None) -> Turn:
        """Start a run on a user message; `client` does what its agent asks for. Call it under the lock. Raises AgentProblem; then
        nothing has changed."""
        with self.entering():
            await self.open_calls.cancel()
            self.services.hand_to(client)
            return await self._begin(message, [message], ask)

    async def begin(self, ask: IdempotencyKey | None = None) -> Turn:
        """Start the first run, on the user message that the session was made with."""
        message = (await self.history())[-1]
        if not isinstance(message, UserMessage):
            raise BadRequest("the last message is not a user message, so there is nothing to answer")
        with self.entering():
            self.services.hand_to(None)
            return await self._begin(message, [], ask)

    def turn_from(self, seq: int) -> Turn:
        """The turn whose first event has this number."""
        return Turn(self.log, seq - 1)

    def turn_begins(self, begin: Entry) -> Turn:
        """The turn whose first event is stored."""
        self.turn_began = begin.seq
        return self.turn_from(begin.seq)

    async def turn_start(self, start: TurnStart, ask: IdempotencyKey | None) -> tuple[Entry, KeyRecord | None]:
        """A turn's first event and the record of its key, to be stored with what the turn begins with."""
        begin = await self.log.following(start)
        return begin, ask.record(self.id, begin.seq) if ask else None

    async def wait_again(self, record: RunRecord) -> None:
        """Take up a run that an earlier gateway left waiting for the client."""
        self.run = self._run(record, None)
        await self.open_calls.take_up(self.run)

    async def cancel(self) -> bool:
        """Stop the run, whatever it is at; False if there was none. Call it under the lock. The session is idle afterwards."""
        if self.run is None or self.run.state is RunState.ENDED:
            return False
        await self.run.cancel(CANCEL_GRACE)
        self.open_calls.stop_watching()
        self._places.changed(self)
        self.line.advance()
        return True

    async def sleep(self, state: str = "idle") -> None:
        """End the live agent, if the session is still in that state; what it was about is resumed when it is needed."""
        if self.live is not None and self.state == state:
            await self._agent.end()
            if self.run is not None:
                await self.run.wait()
            self._places.changed(self)

    async def stop(self, why: str, *, forget: bool = False) -> None:
        """End the run, with this as its error, and the agent: the daemon goes down or the session is deleted (`forget`).

        A run that waits for the client goes on waiting in the store, unless it is to be forgotten.
        """
        if self.run is not None and (forget or self.run.state is not RunState.WAITING):
            await self.run.fail(why)
        self.open_calls.stop_watching()
        live, self._agent.now = self._agent.now, None
        if live is not None:
            await live.close()
        if self.run is not None:
            await self.run.wait()
        await self._agent.forgotten()
        await self.log.written()
        self.log.close()

    async def _begin(self, message: UserMessage, to_store: Sequence[Message], ask: IdempotencyKey | None) -> Turn:
        self.used_at = time.monotonic()
        agent = await self._awake(unsaid=0 if to_store else 1)
        begin, key = await self.turn_start(TurnStart(messages=(message,)), ask)
        record = RunRecord(f"run_{uuid.uuid4().hex}", self.id, "running", None, begin.seq)
        run = self._run(record, agent)
        self.run = run
        # The agent begins while its run is stored; nothing of it is read, let alone shown, before both are done.
        storing = asyncio.create_task(self._store_begin(record, to_store, begin, key))
        try:
            if key is not None:
                # A retry after a kill must find its key, whatever the agent has done by then.
                await storing
            taken = await self._takes(agent, Prompt(message.content))
            await storing
            if not taken:
                # It ended between two turns, unseen; its native session is on disk.
                run.agent = await self._awake(unsaid=1)
                await run.agent.prompt(Prompt(message.content))
        except BaseException:
            await agent.close(0.0)
            await asyncio.wait([storing])
            await run.fail("the agent did not take the prompt")
            raise
        self.start(run)
        return self.turn_from(begin.seq)

    async def _store_begin(self, record: RunRecord, said: Sequence[Message], begin: Entry, key: KeyRecord | None) -> None:
        await self._shared.store.runs.start(
            record, [MessageRow(message.model_dump_json(), begin.seq) for message in said], self.log.row(begin), key
        )
        self.turn_began = begin.seq
        self.log.show(begin)

    def _run(self, record: RunRecord, agent: Agent | None) -> Run:
        shared = self._shared
        meter = shared.metrics.for_agent(self.agent.name).run_metrics(session=True)
        gate = PolicyEnforcer(self.agent.policy, self.config.tools or ())
        note = partial(self._note, record.id)
        return Run(
            record,
            agent,
            self.log,
            shared.store,
            shared.redactor,
            self._keep,
            meter=meter,
            suspendable=True,
            gate=gate,
            note=note,
            waits=self.open_calls.watch,
        )

    async def _note(self, run_id: str, decisions: Sequence[Decision]) -> None:
        await self._shared.audit.write(self.id, run_id, self.agent.name, decisions)

    async def _takes(self, agent: Agent, prompt: Prompt) -> bool:
        try:
            await agent.prompt(prompt)
        except AgentGone:
            return False
        return True

    def start(self, run: Run) -> None:
        """Let a run begin, whose agent has been told what to do."""
        run.start(self.run_ended)
        self._places.changed(self)

    def run_ended(self, run: Run) -> None:
        """See to the agent and to who waits in line: the run has its end in the log, or waits on without its agent."""
        self.used_at = time.monotonic()
        if run.suspended:
            self._agent.now = None
        elif self.live is not None and not self.live.alive:
            self._agent.forget()
        else:
            self._agent.record_native_id()
        if not run.suspended:
            self.open_calls.stop_watching()
        self._places.changed(self)
        self.line.advance()

    async def seeded(self, more: Sequence[Message]) -> Agent:
        """A fresh native session, with the history and these messages, which are not stored yet. Raises AgentProblem."""
        return await self._start_agent([*await self.compacted_history(), *more], resume=False)

    async def _awake(self, unsaid: int) -> Agent:
        """The live agent; started, resumed or seeded if there is none. Raises AgentProblem.

        `unsaid` of the stored messages, at the end, are not for the seed: they are about to be prompted.
        """
        if self._agent.ready and self._agent.now is not None:
            return self._agent.now
        history = await self.compacted_history()
        return await self._start_agent(history[: len(history) - unsaid], resume=True)

    async def _start_agent(self, seed: Sequence[Message], *, resume: bool) -> Agent:
        try:
            return await self._agent.start(self.config, seed, resume=resume)
        finally:
            # Held from here on, whatever comes next: an agent that nobody holds would never be closed.
            self._places.changed(self)

    async def _keep(self, messages: Sequence[MessageRow]) -> None:
        await self._shared.store.messages.append(self.id, messages)
