"""Sessions: makes them, finds them, puts idle agents to sleep, and ends what a killed daemon left open."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
import uuid
from collections.abc import Sequence
from weakref import WeakValueDictionary

from drivers.messages import Message
from gateway.agents import Agents, ConfiguredAgent
from gateway.errors import AgentProblem, NotFound, ShuttingDown, TooMany
from gateway.live_agent import House
from gateway.session import Session
from gateway.session_config import SessionConfig
from gateway.store import SessionRecord
from gateway.store.store import Cursor

log = logging.getLogger(__name__)


class Sessions:
    """All sessions of the daemon. Only those with a live agent or a run stay in memory."""

    def __init__(self, agents: Agents, house: House) -> None:
        self._agents, self._house = agents, house
        self._store, self._vault, self._redactor = house.store, house.vault, house.redactor
        self._known: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._held: dict[str, Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sleepers: dict[str, asyncio.TimerHandle] = {}
        self._dozing: set[str] = set()
        self._closing = False
        self.sleep_after = 900.0
        self.live_agents = 16

    async def create(self, agent: ConfiguredAgent, config: SessionConfig, history: Sequence[Message]) -> Session:
        """Make a session with its first messages; nothing runs yet."""
        self.refuse_if_closing()
        self._redactor.register(config.secrets.values())
        record = SessionRecord(
            f"sess_{uuid.uuid4().hex}", agent.name, config.to_json(), self._vault.seal(config.secrets), None, time.time()
        )
        await self._store.create_session(record, [message.model_dump_json() for message in history])
        session = Session(record, config, agent, self._house, self, 0)
        self._known[record.id] = session
        return session

    async def get(self, session_id: str) -> Session:
        """The session of that id. Raises NotFound, or AgentProblem if its agent is no longer configured."""
        known = self._known.get(session_id)
        if known is not None:
            return known
        record = await self._store.session(session_id)
        if record is None:
            raise NotFound(f"there is no session {session_id!r}; GET the list of sessions for those there are")
        agent = self._agents.find(record.agent)
        if agent is None:
            raise AgentProblem(f"session {session_id!r} is of agent {record.agent!r}, which is no longer in the configuration")
        secrets = self._vault.open(record.secrets)
        self._redactor.register(secrets.values())
        last = await self._store.last_seq(session_id)
        # Another request may have found it meanwhile.
        config = SessionConfig.from_json(record.config, secrets)
        session = Session(record, config, agent, self._house, self, last)
        run = await self._store.last_run(session_id)
        if run is not None and run.state == "waiting":
            await session.wait_again(run)
        return self._known.setdefault(session_id, session)

    async def page(self, limit: int, after: Cursor | None) -> list[tuple[float, str]]:
        """(created_at, id), newest first."""
        return await self._store.session_ids(limit, after)

    async def delete(self, session_id: str) -> None:
        """Stop and forget a session. Raises NotFound."""
        session = await self.get(session_id)
        async with session.lock:
            if session.deleted:
                raise NotFound(f"session {session_id!r} was deleted")
            await session.stop("the session was deleted", forget=True)
            await self._store.delete_session(session_id)
            session.deleted = True
            await asyncio.to_thread(shutil.rmtree, self._house.states / session_id, ignore_errors=True)
            self._known.pop(session_id, None)
        self.changed(session)

    async def close(self, why: str) -> None:
        """End every run with a clean error and every agent; nothing new is taken."""
        self._closing = True
        for timer in self._sleepers.values():
            timer.cancel()
        await asyncio.gather(*(session.stop(why) for session in list(self._held.values())))
        await asyncio.gather(*self._tasks)

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

    def admit(self, newcomer: Session) -> None:
        """A place for a session's agent: the one that was idle for the longest sleeps if all are taken. Raises TooMany."""
        self.refuse_if_closing()
        if newcomer.live is not None:
            return
        others = [s for s in self._held.values() if s.has_agent and s is not newcomer and s.id not in self._dozing]
        if len(others) < self.live_agents:
            # Its place is taken from now on, not only when its agent is up.
            self._held[newcomer.id] = newcomer
            return
        idle = [s for s in others if s.state == "idle" and not s.lock.locked()]
        if not idle:
            taken = f"all {self.live_agents} places for live agents are taken by running turns (limits.live_agents)"
            raise TooMany(f"{taken}; try again later")
        self._put_to_sleep(min(idle, key=lambda session: session.used_at))
        self._held[newcomer.id] = newcomer

    def _put_to_sleep(self, session: Session) -> None:
        async def sleep() -> None:
            try:
                async with session.lock:
                    await session.sleep()
            finally:
                self._dozing.discard(session.id)

        self._dozing.add(session.id)
        task = asyncio.create_task(sleep())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
