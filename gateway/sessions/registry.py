"""Sessions: makes them, finds them, puts idle agents to sleep, and ends what a killed daemon left open."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
import uuid
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from weakref import WeakValueDictionary

from drivers.contract.messages import Message
from gateway.agents.configured import Agents, ConfiguredAgent
from gateway.errors import AgentProblem, NotFound, ShuttingDown
from gateway.events.turn import Turn
from gateway.observability.logs import bind_session_id
from gateway.policy.pending_calls import ends_open
from gateway.runs.admission import AdmissionControl
from gateway.runs.idempotency import IdempotencyKey
from gateway.security.authentication import Caller
from gateway.services import SharedServices
from gateway.sessions.session import Session
from gateway.sessions.settings import SessionSettings, SessionSummary
from gateway.store import Cursor, RunRecord, SessionRecord

log = logging.getLogger(__name__)

STATES: Mapping[str, Literal["idle", "running", "waiting"]] = {"running": "running", "waiting": "waiting", "ended": "idle"}
"""A session's state by that of its last run."""


class Sessions:
    """All sessions of the daemon. Only those with a live agent or a run stay in memory."""

    def __init__(self, agents: Agents, shared: SharedServices, admission: AdmissionControl) -> None:
        self._agents, self._shared = agents, shared
        self._store, self._encryption, self._redactor = shared.store, shared.encryption, shared.redactor
        self._known: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._loading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._held: dict[str, Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sleepers: dict[str, asyncio.TimerHandle] = {}
        self._dozing: set[str] = set()
        self._closing = False
        self.sleep_after = 900.0
        self._admission = admission
        admission.evictable = self

    async def create(
        self,
        caller: Caller,
        agent: ConfiguredAgent,
        config: SessionSettings,
        history: Sequence[Message],
        *,
        ask: IdempotencyKey | None = None,
    ) -> Session:
        """Make a session with its first messages; nothing runs yet. A history that ends in open calls waits for their answers."""
        self.refuse_if_closing()
        self._redactor.register(config.hidden)
        record = SessionRecord(
            f"sess_{uuid.uuid4().hex}",
            agent.name,
            config.to_json(),
            self._encryption.encrypt(config.sealed),
            created_at=time.time(),
            owner=caller.name,
        )
        run_id, since = f"run_{uuid.uuid4().hex}", record.created_at
        waits = RunRecord(run_id, record.id, "waiting", None, 1, since) if ends_open(history) else None
        bind_session_id(record.id)
        key = ask.record(record.id, 1) if ask else None
        await self._store.sessions.create(record, [message.model_dump_json() for message in history], waits, key)
        session = Session(record, config, agent, self._shared, self, 0)
        if waits is not None:
            await session.wait_again(waits)
        self._known[record.id] = session
        return session

    async def get(self, caller: Caller, session_id: str) -> Session:
        """The session of that id. Raises NotFound, also for another's, or AgentProblem if its agent is no longer configured."""
        found = self._known.get(session_id)
        if found is None:
            # One request at a time: of a session that two had loaded there would be two, each with a clock of its own.
            async with self._loading.setdefault(session_id, asyncio.Lock()):
                found = self._known.get(session_id) or await self._load(caller, session_id)
            await found.open_calls.close_overdue()
        if not caller.sees(found.owner):
            raise _none(session_id)
        bind_session_id(found.id)
        return found

    async def _load(self, caller: Caller, session_id: str) -> Session:
        record = await self._store.sessions.get(session_id)
        if record is None or not caller.sees(record.owner):
            raise _none(session_id)
        agent = self._agents.find(record.agent)
        if agent is None:
            raise AgentProblem(f"session {session_id!r} is of agent {record.agent!r}, which is no longer in the configuration")
        bind_session_id(record.id)
        config = SessionSettings.from_json(record.config, self._encryption.decrypt(record.secrets))
        self._redactor.register(config.hidden)
        last = await self._store.events.last_seq(session_id)
        session = Session(record, config, agent, self._shared, self, last)
        run = await self._store.runs.last(session_id)
        if run is not None and run.state == "waiting":
            await session.wait_again(run)
        self._known[session_id] = session
        return session

    async def page(self, caller: Caller, limit: int, after: Cursor | None) -> list[SessionRecord]:
        """Those that are there for the caller, as stored, newest first."""
        return await self._store.sessions.page(limit, after, None if caller.all_sessions else caller.name)

    async def summaries(self, records: Sequence[SessionRecord]) -> list[SessionSummary]:
        """What can be told of stored sessions, also of those whose agent is no longer configured."""
        runs = await self._store.runs.last_of_each([record.id for record in records])
        return [self._summary(record, runs.get(record.id)) for record in records]

    def _summary(self, record: SessionRecord, run: RunRecord | None) -> SessionSummary:
        config = SessionSettings.from_json(record.config, self._encryption.decrypt(record.secrets))
        state = STATES[run.state] if run else "idle"
        return SessionSummary(record.id, record.agent, config, state, run.stop_reason if run else None)

    async def summary(self, session: Session) -> SessionSummary:
        """What can be told of a session."""
        # The state first: what has ended by now is stored by now, and the other way round it would be told in halves.
        config, state = session.config, session.state
        run = await self._store.runs.last(session.id)
        return SessionSummary(session.id, session.agent.name, config, state, run.stop_reason if run else None)

    async def delete(self, caller: Caller, session_id: str) -> None:
        """Stop and forget a session. Raises NotFound."""
        session = await self.get(caller, session_id)
        async with session.lock:
            if session.deleted:
                raise NotFound(f"session {session_id!r} was deleted")
            await session.stop("the session was deleted", forget=True)
            await self._store.sessions.delete(session_id)
            session.deleted = True
            session.line.advance()
            await asyncio.to_thread(shutil.rmtree, self._shared.states / session_id, ignore_errors=True)
            self._shared.transcripts.forget(session_id)
            self._known.pop(session_id, None)
        self.changed(session)

    def cancel_soon(self, session: Session, turn: Turn) -> None:
        """Stop the run of a turn whose client has dropped off, unless another turn has begun meanwhile."""

        async def cancel() -> None:
            async with session.lock:
                if session.turn_began == turn.first and session.busy:
                    await session.cancel()

        if not self._closing:
            self._track(cancel())

    def _track(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, why: str) -> None:
        """End every run with a clean error and every agent; nothing new is taken."""
        self._closing = True
        for timer in self._sleepers.values():
            timer.cancel()
        await asyncio.gather(*(session.stop(why) for session in list(self._known.values())))
        await asyncio.gather(*self._tasks)

    @property
    def held(self) -> list[Session]:
        """Those with a live agent or a run."""
        return list(self._held.values())

    def refuse_if_closing(self) -> None:
        """Raises ShuttingDown once `close` has begun."""
        if self._closing:
            raise ShuttingDown("the gateway is shutting down; try again when it is back")

    def changed(self, session: Session) -> None:
        """Hold a session while it has a live agent or a run; see to its sleep when it is idle."""
        timer = self._sleepers.pop(session.id, None)
        if timer:
            timer.cancel()
        if session.live is None and session.state == "idle":
            self._held.pop(session.id, None)
            return
        self._held[session.id] = session
        if session.state == "idle" and self.sleep_after and not self._closing:
            loop = asyncio.get_running_loop()
            self._sleepers[session.id] = loop.call_later(self.sleep_after, self._put_to_sleep, session)

    @contextmanager
    def entering(self, session: Session) -> Iterator[None]:
        """A place for a session's agent and for its turn; the agent that was idle for the longest sleeps if all are taken.

        Raises TooMany.
        """
        self.refuse_if_closing()
        with self._admission.turn(session.id, session.owner):
            if session.live is None:
                self._admission.take_agent(session.id)
            self._held[session.id] = session
            try:
                yield
            finally:
                self.changed(session)

    def at_work(self) -> Mapping[str, str | None]:
        return {session.id: session.owner for session in self._held.values() if session.busy}

    def with_agents(self) -> list[str]:
        return [session.id for session in self._awake()]

    def make_room(self, newcomer: str) -> bool:
        # Whoever was idle for the longest; if none is, whoever has waited for its client for the longest: its run waits on.
        quiet = [s for s in self._awake() if s.id != newcomer and s.state != "running" and not s.lock.locked()]
        if quiet:
            self._put_to_sleep(min(quiet, key=lambda session: (session.state == "waiting", session.used_at)))
        return bool(quiet)

    def _awake(self) -> list[Session]:
        return [session for session in self._held.values() if session.live is not None and session.id not in self._dozing]

    def _put_to_sleep(self, session: Session) -> None:
        state = session.state

        async def sleep() -> None:
            bind_session_id(session.id)
            try:
                async with session.lock:
                    await session.sleep(state)
            finally:
                self._dozing.discard(session.id)

        self._dozing.add(session.id)
        self._track(sleep())


def _none(session_id: str) -> NotFound:
    return NotFound(f"there is no session {session_id!r}; GET the list of sessions for those there are")
