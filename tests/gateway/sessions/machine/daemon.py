"""One daemon of the state machine test: a real SQLite store and the registry of sessions, without HTTP and without threads."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from drivers.contract.agent_specs import Limits
from drivers.contract.driver_info import ToolGrant
from drivers.runtime.process import Spawner
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.app import END_TIMEOUT, SHUT_DOWN, STORE_TIMEOUT
from gateway.cluster.sessions import ClusterSessions
from gateway.config import AgentSettings, LimitSettings
from gateway.errors import LeaseLost
from gateway.observability.audit import AuditLog
from gateway.observability.metrics import Metrics
from gateway.observability.transcripts import Transcripts
from gateway.policy.rules import Rule
from gateway.runs.admission_and_eviction import AdmissionControl
from gateway.runs.recovery import close_open_runs
from gateway.runs.shared_services import SharedServices
from gateway.security.encryption import SecretEncryption
from gateway.security.redaction import Redactor
from gateway.sessions.registry import Sessions
from gateway.sessions.session import Session
from gateway.sessions.settings import SessionSettings
from gateway.store import SessionRecord, Store
from gateway.store.backend import Failure
from gateway.store.fencing import Lease
from gateway.store.sql import Connection
from gateway.store.sqlite import SqliteBackend, sqlite_url
from tests.gateway.sessions.machine.scripted import APP_TOOL, ScriptedDriver
from tests.gateway.sessions.machine.still_loop import InlineExecutor, StillLoop, in_line
from tests.support.faulty_store import FaultyStore
from tests.support.manual_clock import ManualClock
from tests.support.store_template import create_database

NODE = "here"
GRACE = 1.0
"""Seconds that an agent has to end."""
SETTINGS = SessionSettings(options={"pace": "0"}, tools=(ToolGrant("look", trust=True),), app_tools=(APP_TOOL,))


@dataclass(frozen=True)
class Choices:
    """The configuration of a daemon."""

    leased: bool = False
    stored_first: bool = False
    seeds: bool = True
    waits_for_limits: bool = False
    live_agents: int = 1
    answer: float = 0.0
    sleep_after: float = 0.0


class _AnswerLost(Exception):
    """The connection was lost before the answer to a commit."""


class Commits:
    """Loses the answer of one commit, as a server does whose connection breaks. Nobody knows then whether it is stored."""

    def __init__(self) -> None:
        self.next: bool | None = None
        """Whether the next commit is stored, if its answer gets lost; None if it is answered."""
        self.unanswered = self._stored = False
        self.lost: Callable[[], None] = lambda: None

    def wrap(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def transaction(backend: SqliteBackend) -> Iterator[Connection]:
            lost, self.next = self.next, None
            with real(backend) as connection:
                yield connection
                if lost is False:
                    self._lose(stored=False)
            if lost:
                self._lose(stored=True)

        return transaction

    def _lose(self, *, stored: bool) -> None:
        self.unanswered, self._stored = True, stored
        self.lost()
        raise _AnswerLost

    def was_committed(self) -> bool:
        if self.unanswered:
            raise _AnswerLost
        return self._stored


class OwnLease:
    """The lease of a session, as gateway.cluster.leases.HeldLease. `stale`: it was not renewed in time."""

    def __init__(self, store: Store, log_id: str, token: int) -> None:
        self._store, self.log_id, self.node, self.token = store, log_id, NODE, token
        self.held, self.lost, self.deleted, self.stale = True, False, False, False
        self.on_lost: Callable[[], None] | None = None

    @property
    def is_fresh(self) -> bool:
        return self.held and not self.stale

    async def hold(self) -> None:
        if not self.held:
            raise LeaseLost(self.log_id)

    async def confirm(self) -> None:
        await self.hold()
        if self.stale:
            found = await self._store.leases.get(self.log_id)
            if found is None or (found.node, found.token) != (self.node, self.token):
                self.lose()
                raise LeaseLost(self.log_id)
            self.stale = False

    async def release(self) -> None:
        raise NotImplementedError

    def end_with_log(self) -> None:
        self.deleted, self.held = True, False

    def lose(self) -> None:
        if not self.lost and not self.deleted:
            self.held, self.lost = False, True
            if self.on_lost is not None:
                self.on_lost()


class LeasedSessions(Sessions):
    """The sessions of a node of a cluster that has all leases until the test gives them to another node."""

    leases: dict[str, OwnLease]
    _lost, _services = ClusterSessions._lost, ClusterSessions._services

    @asynccontextmanager
    async def _creating(self, session_id: str) -> AsyncIterator[tuple[Store, Callable[[], Lease | None]]]:
        self.leases[session_id] = lease = OwnLease(self._store, session_id, 1)
        yield self._store.creating(session_id, NODE, 3600.0), lambda: lease

    async def _restored(self, record: SessionRecord, agent: ConfiguredAgent, lease: Lease | None = None) -> Session:
        if record.id not in self.leases:
            found = await self._store.leases.get(record.id)
            assert found is not None
            self.leases[record.id] = OwnLease(self._store, record.id, found.token)
        if not self.leases[record.id].held:
            raise LeaseLost(record.id)
        return await super()._restored(record, agent, self.leases[record.id])

    def _session(self, *arguments: Any) -> Session:
        session = super()._session(*arguments)
        if session.lease is not None:
            session.lease.on_lost = partial(self._lost, session)
        return session


class _Agents:
    """The one agent of the daemon, as gateway.agents.configured_agents.Agents has it."""

    def __init__(self, agent: ConfiguredAgent) -> None:
        self._agent = agent

    def find(self, name: str) -> ConfiguredAgent:
        return self._agent


class OneDaemon:
    """`start` it first. It can be shut down or killed, and started again on the same store."""

    def __init__(self, folder: Path, loop: StillLoop, clock: ManualClock, driver: ScriptedDriver, choices: Choices) -> None:
        self.folder, self._loop, self._clock, self._driver, self._choices = folder, loop, clock, driver, choices
        self.commits = Commits()
        self.writer = InlineExecutor(loop)
        self._patches = ExitStack()
        self._patched()
        rules = (Rule(tool="forbidden", decide="deny", reason="no"),)
        settings = AgentSettings(
            driver="scripted", policy=rules, on_rate_limit="wait" if choices.waits_for_limits else "fail", cwd=folder
        )
        self.agent = ConfiguredAgent("agent", settings, driver, folder / "work", {}, any_directory=False)
        self.tokens = 1
        loop.done(create_database(self.data))
        self._connection = sqlite3.connect(self.data / "portico.db", isolation_level=None)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def url(self) -> str:
        return sqlite_url(self.data)

    def _patched(self) -> None:
        """Let the store and file accesses use the loop instead of threads, and let `commits` lose answers."""
        patches, failure = self._patches, SqliteBackend.failure

        def executor(*arguments: Any, thread_name_prefix: str) -> InlineExecutor:
            made = InlineExecutor(self._loop)
            if thread_name_prefix == "store-writer":
                self.writer = made
            return made

        def found_failure(backend: SqliteBackend, error: BaseException | None) -> Failure | None:
            return Failure.LOST if isinstance(error, _AnswerLost) else failure(backend, error)

        patches.enter_context(patch("gateway.store.transactions.ThreadPoolExecutor", executor))
        patches.enter_context(patch("drivers.runtime.file_threads.in_thread", in_line))
        patches.enter_context(patch("gateway.agents.folder_access.in_thread", in_line))
        patches.enter_context(patch.object(SqliteBackend, "transaction", self.commits.wrap(SqliteBackend.transaction)))
        patches.enter_context(patch.object(SqliteBackend, "was_committed", lambda backend: self.commits.was_committed()))
        patches.enter_context(patch.object(SqliteBackend, "failure", found_failure))

        def hold() -> None:
            self.writer.held = True

        self.commits.lost = hold

    def start(self) -> None:
        self._loop.done(self._start())

    async def _start(self) -> None:
        choices, clock = self._choices, self._clock
        self.store = await FaultyStore.open(self.url)
        await close_open_runs(self.store, lambda name: choices.seeds)
        redactor = Redactor()
        limits = LimitSettings(
            grace=GRACE, live_agents=choices.live_agents, answer=choices.answer, sleep_after=choices.sleep_after
        )

        async def supported(agent: ConfiguredAgent) -> None: ...

        shared = SharedServices(
            self.store,
            SecretEncryption(self.data),
            redactor,
            Spawner("daemon", self.store.processes, clock=clock),
            Limits(0, 0, 0, GRACE),
            self.folder / "states",
            Metrics(),
            None,
            AuditLog(redactor),
            Transcripts(self.data / "transcripts", redactor),
            lambda agent: None,
            supported,
            None,
            choices.answer,
            choices.stored_first,
            clock,
        )
        kind = LeasedSessions if choices.leased else Sessions
        self.sessions = kind(_Agents(self.agent), shared, AdmissionControl(limits), choices.sleep_after)
        self.leases = self.sessions.leases = {}

    def shut_down(self) -> None:
        """End as gateway.app.Gateway does, within the same limits of time."""

        async def stop() -> None:
            abandoning = self._clock.call_later(GRACE + STORE_TIMEOUT, self.store.abandon)
            ended = asyncio.create_task(self.sessions.close(SHUT_DOWN))
            await self._clock.wait([ended], GRACE + END_TIMEOUT)
            if not ended.done():
                self.sessions.end_unstored(SHUT_DOWN)
            abandoning.cancel()

        stopping = self._loop.create_task(stop())
        self._loop.settle()
        for _ in range(10):
            if not stopping.done():
                self._loop.run_until_complete(self._clock.advance(0.5))
                self._loop.settle()
        assert stopping.done(), "the shutdown takes longer than it may"
        stopping.result()
        self._close_store()

    def kill(self) -> None:
        """End without a last word: what is not stored is lost."""
        self.store.abandon()
        self.writer.drop()
        self._loop.call_soon(self.sessions.end_unstored, "killed")
        self._loop.settle()
        self._loop.cancel_all()
        self._clock.forget()
        self._close_store()

    def _close_store(self) -> None:
        self.commits.next, self.commits.unanswered = None, False
        self.writer.release()
        self._loop.settle()
        self.store.abandon()
        self._loop.settle()
        self.store._database._backend.close()

    def close(self) -> None:
        self._patches.close()
        self._connection.close()

    # -- leases -----------------------------------------------------------------------------------------------------------

    def give_away(self, session_id: str) -> None:
        """Another node gets the lease of a session. This one is not notified."""
        self.tokens += 1
        self.execute(
            "UPDATE leases SET node = 'other', token = :token WHERE log_id = :id", {"id": session_id, "token": self.tokens}
        )

    def take_back(self, session_id: str) -> None:
        """The other node ends the runs of the session, and this one gets its lease again."""
        self._loop.done(close_open_runs(self.store, lambda name: self._choices.seeds, session_id))
        self.tokens += 1
        self.execute(
            "UPDATE leases SET node = :node, token = :token WHERE log_id = :id",
            {"id": session_id, "token": self.tokens, "node": NODE},
        )
        self.leases[session_id] = OwnLease(self.store, session_id, self.tokens)

    # -- what is stored ---------------------------------------------------------------------------------------------------

    def execute(self, statement: str, values: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Execute a statement by a connection of the test's own."""
        return self._connection.execute(statement, values or {}).fetchall()

    @property
    def stored_version(self) -> int:
        """Another number whenever the daemon has stored something."""
        found: int = self.execute("PRAGMA data_version")[0][0]
        return found


def with_pace(settings: SessionSettings, pace: str) -> SessionSettings:
    """The settings with this value of the option `pace`."""
    return replace(settings, options={**settings.options, "pace": pace})
