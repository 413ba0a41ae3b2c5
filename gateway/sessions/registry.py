"""Sessions: creates, finds, lists and deletes them, and ends the agents of idle ones in the background.

Of the states of a session it knows what clients see: idle, running and waiting.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal
from weakref import WeakValueDictionary

from drivers.contract.events import Usage
from drivers.contract.mcp_servers import McpServer
from drivers.contract.messages import Message, ToolMessage
from drivers.runtime.clock import Timer
from drivers.runtime.confined_files import discard_tree
from gateway.agents.client_mcp_servers import allowed_servers, check_client_servers
from gateway.agents.configured_agents import CWD, Agents, ConfiguredAgent
from gateway.agents.folder_access import FOLDER_OF_SESSION, ChosenFolder, ListedFolders, in_time
from gateway.errors import (
    AgentProblem,
    BadRequest,
    Forbidden,
    GatewayError,
    NotFound,
    StoreUnavailable,
    too_many_sessions,
)
from gateway.events.messages import CANCELLED, message_row
from gateway.events.turn_reader import Turn
from gateway.observability.logs import bind_session_id
from gateway.runs.admission_and_eviction import AdmissionControl
from gateway.runs.cancellation import all_ended, completed
from gateway.runs.idempotency import IdempotencyKey
from gateway.runs.pending_calls import ends_pending, unanswered
from gateway.runs.run import TurnUsage
from gateway.runs.session_metadata import displayed_title
from gateway.runs.shared_services import SharedServices
from gateway.security.authentication import ADMINISTRATOR, Caller
from gateway.security.encryption import SecretsUnreadable
from gateway.security.redaction import Redactor
from gateway.sessions.changes import SessionChanges
from gateway.sessions.machine import Command
from gateway.sessions.pending_call import PendingCall
from gateway.sessions.session import Session
from gateway.sessions.settings import SessionFilter, SessionSettings, SessionSummary
from gateway.store import Cursor, QueuedRow, RunRecord, SessionDetails, SessionRecord, Store, WorktreeRecord
from gateway.store.fencing import Lease
from gateway.worktrees.worktrees import SessionWorktree

log = logging.getLogger(__name__)

FILTERED_ROWS = 200
"""Sessions that are read at once where a filter is applied to them afterwards."""
STATES: Mapping[str, Literal["idle", "running", "waiting"]] = {"running": "running", "waiting": "waiting", "ended": "idle"}
"""A session's state by that of its last run."""


class Sessions:
    """All sessions of the daemon. Only those with a live agent, a run or something to be written stay in memory.

    `sleep_after` is how many seconds an idle session keeps its agent, 0 for ever. Those of a node of a cluster are
    gateway.cluster.sessions.ClusterSessions.
    """

    def __init__(
        self,
        agents: Agents,
        shared: SharedServices,
        admission: AdmissionControl,
        sleep_after: float,
    ) -> None:
        self._agents, self._shared, self._admission = agents, shared, admission
        self.listed_folders = ListedFolders(agents)
        self._store, self._encryption = shared.store, shared.encryption
        self._known: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._loading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._background: set[asyncio.Task[object]] = set()
        self._sleep_timers: dict[str, Timer] = {}
        self._sleep_after = sleep_after
        self.changes = SessionChanges()
        self._closing = False
        self._deleting = asyncio.Lock()

    async def create(
        self,
        caller: Caller,
        agent: ConfiguredAgent,
        config: SessionSettings,
        history: Sequence[Message],
        *,
        key: IdempotencyKey | None = None,
        wait_for_calls: bool = True,
        copied: tuple[str, int] | None = None,
        origin: SessionWorktree | None = None,
        here: bool = False,
    ) -> Session:
        """Make a session with its first messages; nothing runs yet. Where its agent has worktrees, it has one from here on.

        A history that ends in calls without results waits for their answers, unless `wait_for_calls` is false: a user message
        follows it at once. `copied` is the id of another session, and how many of its messages come before these; `origin` is the
        worktree of that session, which the new one's has the state of. `here`: no other node of a cluster creates it, however
        loaded this one is.

        Raises ShuttingDown, TooMany, and AgentProblem if the settings' secrets are lost; BadRequest, Conflict and AgentProblem if
        the folder cannot have a worktree; SessionElsewhere if another node of the cluster is to create it.
        """
        self._admission.refuse_if_closing()
        if copied is None and not here:
            # A fork stays at the node of its origin.
            await self.place(agent.name, config.options.get(CWD.name))
        config.require_secrets()
        session_id = f"sess_{uuid.uuid4().hex}"
        if not agent.settings.worktree and origin is None:
            config = replace(config, worktree=None)
            return await self._create(session_id, caller, agent, config, history, key, wait_for_calls, copied)

        async def with_worktree() -> Session:
            limit = self._admission.sessions_per_key
            # Git works for long. The transaction that stores the session counts again.
            if limit and await self._store.sessions.count(caller.name) >= limit:
                raise too_many_sessions(limit)
            own_folder = partial(agent.folder_without_worktree, config.options, config.workspace_key)
            folder = await in_time(own_folder, FOLDER_OF_SESSION)
            worktree = await self._shared.worktrees.create(session_id, caller.name, agent.name, folder, origin)
            own = replace(config, worktree=worktree)
            try:
                made = await self._create(session_id, caller, agent, own, history, key, wait_for_calls, copied)
            except BaseException:
                await self._shared.worktrees.discard(session_id)
                raise
            await self._shared.worktrees.created(session_id)
            return made

        return await completed(with_worktree())

    async def _create(
        self,
        session_id: str,
        caller: Caller,
        agent: ConfiguredAgent,
        config: SessionSettings,
        history: Sequence[Message],
        key: IdempotencyKey | None,
        wait_for_calls: bool,
        copied: tuple[str, int] | None,
    ) -> Session:
        redactor = self._redactor_of(config)
        record = SessionRecord(
            session_id,
            agent.name,
            config.to_json(),
            self._encryption.encrypt(config.to_encrypt),
            created_at=self._shared.clock.time(),
            owner=caller.name,
            forked_from=copied[0] if copied is not None else None,
        )
        run_id, since = f"run_{uuid.uuid4().hex}", record.created_at
        pending = wait_for_calls and ends_pending(history)
        waiting = RunRecord(run_id, record.id, "waiting", None, 1, since) if pending else None
        bind_session_id(record.id, redactor)
        key_record = key.record(record.id, 1) if key else None
        rows = [message_row(message) for message in history]
        await self._shared.audit_mcp_servers(record.id, agent.name, config.mcp_servers)
        async with self._creating(record.id) as (store, lease):
            limit = self._admission.sessions_per_key
            await store.sessions.create(record, rows, waiting, key_record, copied=copied, limit=limit)
        session = self._session(record, config, agent, 0, redactor, lease())
        if waiting is not None:
            await session.restore_waiting(waiting)
        self._known[record.id] = session
        session.announce()
        return session

    async def fork(
        self,
        caller: Caller,
        origin: Session,
        change: Callable[[SessionSettings], Awaitable[SessionSettings]],
        *,
        count: int | None = None,
        after: int | None = None,
        key: IdempotencyKey | None = None,
    ) -> Session:
        """Make a session with the messages and the settings of another. The two are independent from then on.

        `change` returns the settings of the new session from those of the other. It gets the first `count` messages, or those
        that are complete with the event `after`, or by default all, which is refused while a turn is at work. A call without a
        result gets a result that states its cancellation. Raises BadRequest for what the session does not have, Conflict, and
        what `create` raises.
        """
        agent = origin.agent
        if not agent.info.capabilities.seeds:
            raise BadRequest(f"agent {agent.name!r} accepts no history, so its sessions cannot be forked")
        async with origin.lock:
            if count is None and after is None:
                origin.machine.require(Command.FORK)
            messages = await self._forked(origin, count, after)
            calls = unanswered(await origin.history.unanswered_calls(messages))
            settings = origin.config
        results: list[Message] = [ToolMessage(tool_call_id=call_id, content=CANCELLED) for call_id in calls]
        changed = await change(settings)
        # In another folder the fork begins with the commit of that.
        folders = await in_time(
            lambda: [agent.folder_of(one.options, one.workspace_key) for one in (settings, changed)], FOLDER_OF_SESSION
        )
        worktree = settings.worktree if folders[0] == folders[1] else None
        return await self.create(caller, agent, changed, results, key=key, copied=(origin.id, messages), origin=worktree)

    async def _forked(self, origin: Session, count: int | None, after: int | None) -> int:
        """How many messages of a session a fork gets."""
        if after is not None:
            if after > origin.log.last:
                raise BadRequest(f"after: this session has no event {after}, its last is {origin.log.last}")
            if not origin.log.is_stored(after):
                await origin.log.require_written()
            return await origin.history.count_until(after)
        total = await origin.history.count()
        if count is not None and count > total:
            raise BadRequest(f"messages: this session has {total} messages, not {count}")
        return total if count is None else count

    async def check_mcp_servers(self, agent: ConfiguredAgent, servers: Sequence[McpServer], session_id: str = "") -> None:
        """Raise Forbidden for MCP servers of a client that the agent's configuration does not allow. The audit has them then.

        `session_id` is empty for a session that is not created yet.
        """
        try:
            check_client_servers(agent.name, agent.settings, servers)
        except Forbidden as error:
            allowed = allowed_servers(agent.settings, servers)
            denied = [server for server in servers if server not in allowed]
            await self._shared.audit_mcp_servers(session_id, agent.name, denied, denied=str(error))
            raise

    async def place(self, agent: str, folder: str | None, *, again: bool = False, here: bool = False) -> None:
        """Raise SessionElsewhere or NoNode if another node of a cluster is to create a session of this agent in this folder.

        With `again` the same is asked once more for one session. `here`: this node is, if it can, however loaded it is.
        """

    async def require_worktree_here(self, worktree: WorktreeRecord) -> None:
        """Raise SessionElsewhere if another node of a cluster has the worktree of a session."""

    @asynccontextmanager
    async def _creating(self, session_id: str) -> AsyncIterator[tuple[Store, Callable[[], Lease | None]]]:
        """Give the store for the write that creates a session, and what returns its lease after that."""
        yield self._store, lambda: None

    async def get(
        self, caller: Caller, session_id: str, *, reading: bool = False, deleting: bool = False, here: bool = False
    ) -> Session:
        """The session of that id. Raises NotFound, also for another's, or AgentProblem if its agent is no longer configured.

        `reading`, `deleting` and `here` are for nodes of a cluster (ClusterSessions.get).
        """
        found = self._known.get(session_id)
        if found is None:
            # One request at a time: two loads would make two objects of one session, each with a lock and a timer of its own.
            async with self._loading.setdefault(session_id, asyncio.Lock()):
                found = self._known.get(session_id) or await self._load(caller, session_id)
            await found.deny_overdue()
        if not caller.sees(found.owner):
            raise no_session(session_id)
        bind_session_id(found.id, found.redactor)
        return found

    async def get_history(self, caller: Caller, session_id: str) -> Session:
        """The session of that id, only for what is stored of its log and its history. Nothing of it is to be changed.

        Raises NotFound.
        """
        return await self.get(caller, session_id)

    async def of_conversation(self, caller: Caller, digest: bytes) -> Session | None:
        """The session that has answered the conversation with this digest last; None if there is none, or it cannot go on."""
        session_id = await self._store.sessions.of_conversation(digest)
        try:
            return None if session_id is None else await self.get(caller, session_id)
        except (NotFound, AgentProblem) as error:
            log.info("session %s is not continued by a conversation: %s", session_id, error)
            return None

    async def agent_of(self, caller: Caller, session_id: str) -> str:
        """The name of a session's agent, which need not be configured here. Raises NotFound."""
        record = await self._store.sessions.get(session_id)
        if record is None or not caller.sees(record.owner):
            raise no_session(session_id)
        return record.agent

    async def _load(self, caller: Caller, session_id: str) -> Session:
        record = await self._record(caller, session_id)
        agent = self._agents.find(record.agent)
        if agent is None:
            raise no_agent(record.id, record.agent)
        self._known[session_id] = session = await self._restored(record, agent)
        session.queue.advance()
        return session

    def begin_queued_soon(self) -> None:
        """Begin the queued messages that an earlier daemon has left, in the background."""
        self._run_in_background(self.begin_queued())

    async def begin_queued(self) -> None:
        """Load the sessions whose first queued message can begin, so that it does. A failure is logged."""
        try:
            for session_id in await self._with_queued():
                # In a task, since it binds the id of the session for the log lines of its caller.
                await asyncio.create_task(self._begin_queued(session_id))
        except StoreUnavailable as error:
            log.warning("queued messages do not begin yet: %s", error)

    async def _begin_queued(self, session_id: str) -> None:
        if self._closing or self._current(session_id) is not None:
            return
        try:
            self._changed(await self.get(ADMINISTRATOR, session_id))
        except GatewayError as error:
            log.info("the queued messages of session %s do not begin here: %s", session_id, error)

    async def _with_queued(self) -> list[str]:
        """The sessions whose first queued message can begin, if the session is not in memory."""
        return await self._store.queued_messages.to_begin()

    async def _record(self, caller: Caller, session_id: str) -> SessionRecord:
        record = await self._store.sessions.get(session_id)
        if record is None or not caller.sees(record.owner):
            raise no_session(session_id)
        return record

    async def _restored(self, record: SessionRecord, agent: ConfiguredAgent, lease: Lease | None = None) -> Session:
        """A session as it is stored."""
        config = self._settings(record, agent)
        redactor = self._redactor_of(config)
        bind_session_id(record.id, redactor)
        # First: all events of a run that has ended by now are stored by now.
        run = await self._store.runs.last(record.id)
        last = await self._store.events.last_seq(record.id)
        session = self._session(record, config, agent, last, redactor, lease)
        if run is not None and run.state == "waiting":
            await session.restore_waiting(run)
        rows = await self._store.queued_messages.of(record.id)
        session.queue.load(rows, [self._changes(record, row, agent) for row in rows], record.queue_stopped)
        return session

    def _changes(self, record: SessionRecord, row: QueuedRow, agent: ConfiguredAgent) -> SessionSettings | None:
        """The settings that a queued message of a session changes."""
        stored = row.settings
        if stored is None:
            return None
        return self._settings(replace(record, config=stored.config, secrets=stored.secrets), agent)

    def _current(self, session_id: str) -> Session | None:
        """A session in memory; None if there is none, or if another node of a cluster may have changed it."""
        return self._known.get(session_id)

    def _redactor_of(self, config: SessionSettings) -> Redactor:
        redactor = Redactor(self._shared.redactor)
        redactor.register(config.hidden)
        return redactor

    def _session(
        self,
        record: SessionRecord,
        config: SessionSettings,
        agent: ConfiguredAgent,
        last_seq: int,
        redactor: Redactor,
        lease: Lease | None = None,
    ) -> Session:
        return Session(
            record,
            config,
            agent,
            self._services(lease),
            last_seq,
            redactor,
            admission=self._admission,
            changed=self._changed,
            evict=self.end_agent_soon,
            announce=self._announce,
            lease=lease,
        )

    def _services(self, lease: Lease | None) -> SharedServices:
        """The shared services for one session."""
        return self._shared

    async def stored(self) -> bool:
        """Wait until the store, which other nodes of a cluster read, has what clients know of the sessions.

        Returns False if that takes too long.
        """
        return True

    async def filtered(
        self, caller: Caller, limit: int, after: Cursor | None, wanted: SessionFilter
    ) -> list[tuple[SessionRecord, Cursor]]:
        """Stored sessions that the caller may see, with the cursor behind each: those that the filter wants, in its order."""
        owner, found = None if caller.all_sessions else caller.name, list[tuple[SessionRecord, Cursor]]()
        while len(found) < limit:
            rows = await self._store.sessions.filtered(
                FILTERED_ROWS if wanted.cwd is not None else limit,
                after,
                owner,
                agent=wanted.agent,
                state=wanted.state,
                by_activity=wanted.by_activity,
            )
            chosen = {} if wanted.cwd is None else await self.listed_folders.resolve(_chosen_of(row[0]) for row in rows)
            found += [row for row in rows if wanted.cwd is None or wanted.cwd in _folders_of(row[0], chosen)]
            if wanted.cwd is None or len(rows) < FILTERED_ROWS:
                break
            after = rows[-1][1]
        return found[:limit]

    async def page(self, caller: Caller, limit: int, after: Cursor | None) -> list[SessionRecord]:
        """The stored sessions that the caller may see, newest first."""
        return await self._store.sessions.page(limit, after, None if caller.all_sessions else caller.name)

    async def summaries_of(self, session_ids: Sequence[str]) -> list[SessionSummary]:
        """Summaries of the sessions with these ids; those that do not exist any more are omitted."""
        return await self.summaries(await self._store.sessions.some(session_ids)) if session_ids else []

    async def summaries(self, records: Sequence[SessionRecord]) -> list[SessionSummary]:
        """Summaries of stored sessions, also of those whose agent is no longer configured."""
        at_work = {record.id: self._turn_usage(record.id) for record in records}
        ids = [record.id for record in records]
        found = await self._store.sessions.details(ids)
        waiting = [record for record in records if _waits(found.get(record.id))]
        loaded, stored = await self._waiting_of(waiting, found)
        settings = {record.id: self._settings(record, self._agents.find(record.agent), listed=True) for record in records}
        chosen = {record.id: _chosen(record.agent, settings[record.id]) for record in records}
        folders = await self.listed_folders.resolve(chosen.values())

        def summary(record: SessionRecord) -> SessionSummary:
            config, details = settings[record.id], found.get(record.id)
            state = STATES[details.run.state] if details and details.run else "idle"
            usage = self._usage(record.id, details, at_work[record.id])
            cwd, origin = folders[chosen[record.id]], record.forked_from
            if cwd is not None and config.worktree is not None:
                cwd = config.worktree.folder
            plain = _summary(record.id, record.agent, config, state, details, record.created_at, usage, cwd, origin)
            plain = replace(plain, queue_stopped=record.queue_stopped)
            if record.id in stored:
                return replace(plain, pending=stored[record.id].pending, waiting_since=stored[record.id].since)
            return _with_state(plain, loaded.get(record.id) or self._current(record.id))

        return [summary(record) for record in records]

    async def _waiting_of(
        self, records: Sequence[SessionRecord], details: Mapping[str, SessionDetails]
    ) -> tuple[Mapping[str, Session], Mapping[str, StoredWaiting]]:
        """Sessions that wait for their clients: those that are in memory, and what others wait for, by their ids."""
        return {one.id: session for one in records if (session := await self._loaded(one.id)) is not None}, {}

    async def _loaded(self, session_id: str) -> Session | None:
        """The session of a run that waits for its client, which is kept in memory from then on. None if it cannot be loaded."""
        found = self._current(session_id)
        if found is not None:
            return found

        async def load() -> Session:
            return await self.get(ADMINISTRATOR, session_id, reading=True)

        try:
            # In a task, since it binds the id of the session for the log lines of its caller.
            session = await asyncio.create_task(load())
        except GatewayError as error:
            log.debug("session %s cannot be loaded: %s", session_id, error)
            return None
        self._changed(session)
        return session

    def _settings(self, record: SessionRecord, agent: ConfiguredAgent | None, *, listed: bool = False) -> SessionSettings:
        """The stored settings, without options that have been locked since. Lost secrets are logged, for a list at `debug`."""
        secrets: dict[str, str] | None = None
        try:
            secrets = self._encryption.decrypt(record.secrets)
        except SecretsUnreadable as error:
            log.log(logging.DEBUG if listed else logging.ERROR, "the secrets of session %s are lost: %s", record.id, error)
        stored = SessionSettings.from_json(record.config, secrets)
        if agent is None or not agent.locked:
            return stored
        return replace(stored, options=agent.without_locked(stored.options), secrets=agent.without_locked(stored.secrets))

    async def summary(self, session: Session) -> SessionSummary:
        """The summary of a session."""
        # The state is read first: a run that has ended by now is stored by now. In the other order they might not match.
        config, state, at_work = session.config, session.state, self._turn_usage(session.id)
        details = (await self._store.sessions.details([session.id])).get(session.id)
        usage = self._usage(session.id, details, at_work)
        cwd = None if config.worktree is None else config.worktree.folder
        if cwd is None:
            chosen = _chosen(session.agent.name, config)
            cwd = (await self.listed_folders.resolve([chosen]))[chosen]
        origin = session.forked_from
        plain = _summary(session.id, session.agent.name, config, state, details, session.created_at, usage, cwd, origin)
        return _with_state(plain, session)

    def _turn_usage(self, session_id: str) -> TurnUsage | None:
        session = self._current(session_id)
        return session.run.turn_usage if session is not None and session.run is not None else None

    def _usage(self, session_id: str, details: SessionDetails | None, at_work: TurnUsage | None) -> Usage | None:
        """What a session has used: what is stored, and what `at_work`, read before that, has of the turn that is not."""
        stored = details.usage if details is not None else None
        if at_work is None or at_work.usage is None or details is None or details.run is None:
            return stored
        now = self._turn_usage(session_id)
        same_turn = now is not None and (now.run_id, now.turn) == (at_work.run_id, at_work.turn)
        # The usage of a turn is stored in one transaction with the end of that.
        if not same_turn or (details.run.id, details.run.state) != (at_work.run_id, "running"):
            return stored
        return at_work.usage if stored is None else stored.plus(at_work.usage)

    async def delete(self, caller: Caller, session_id: str) -> None:
        """Stop and delete a session. Raises NotFound."""
        await completed(self._delete(await self.get(caller, session_id, deleting=True)))

    def delete_soon(self, caller: Caller, session: Session) -> None:
        """Delete a session in the background."""
        if not self._closing:
            self._run_in_background(self._delete_if_idle(caller, session.id))

    async def delete_unused(self, before: float) -> None:
        """Delete the idle sessions that were used last before a time. Sessions of other nodes are left to them."""
        for session_id in await self._store.sessions.unused_since(before):
            known = self._known.get(session_id)
            # A turn may have begun that is not stored yet.
            if known is None or self._shared.clock.time() - known.unused_seconds < before:
                await self._delete_if_idle(ADMINISTRATOR, session_id)

    async def _delete_if_idle(self, caller: Caller, session_id: str) -> None:
        """Delete a session unless it is used by now. A failure is logged."""
        try:
            session = await self.get(caller, session_id, deleting=True)
            if session.state == "idle" and session.queue.empty:
                await completed(self._delete(session))
        except NotFound:
            return
        except GatewayError as error:
            log.info("session %s is not deleted yet: %s", session_id, error)

    async def _delete(self, session: Session) -> None:
        # First, since it may fail: a deletion that is refused changes nothing.
        await session.delete_stored()
        async with session.lock:
            try:
                await session.stop("the session was deleted", forget=True)
            finally:
                self._known.pop(session.id, None)
            await self._remove_files(session.id, worktree=session.config.worktree is not None)
        self._changed(session)
        self.changes.announce(session.id, session.owner, "deleted")
        self._run_in_background(self._delete_rest(session.id))

    async def _delete_rest(self, session_id: str) -> None:
        """Delete the events and messages of a session that was deleted. The retention deletes what is left."""
        # One at a time: the parts of several would be committed together, and turns would wait for that.
        async with self._deleting:
            try:
                while not self._closing and await self._store.sessions.delete_part(session_id):
                    pass
            except StoreUnavailable as error:
                log.warning("the messages of the deleted session %s are deleted later: %s", session_id, error)

    async def _remove_files(self, session_id: str, *, worktree: bool) -> None:
        """Remove what a session that was deleted has left on this machine."""
        await asyncio.to_thread(discard_tree, self._shared.states / session_id)
        self._shared.transcripts.forget(session_id)
        if worktree:
            await self._shared.worktrees.release(session_id)

    def cancel_soon(self, session: Session, turn: Turn, *, waiting: bool = False) -> None:
        """Cancel the run of a turn whose client has disconnected, in the background, as `Session.cancel` does."""
        if not self._closing:
            self._run_in_background(session.cancel(turn, waiting=waiting))

    async def close(self, why: str) -> None:
        """End every run with this error, and every agent; nothing new is started."""
        self._closing = True
        self._admission.close()
        for timer in self._sleep_timers.values():
            timer.cancel()
        await all_ended(session.stop(why) for session in list(self._known.values()))
        self.changes.close()
        await all_ended(self._background)

    async def start_process(self, session: Session) -> None:
        """Do as `prepare`, and wait until a process of the agent has been started, or there is to be none."""
        preparing, started = self.prepare(session), asyncio.create_task(session.process_started())
        try:
            await asyncio.wait([preparing, started], return_when=asyncio.FIRST_COMPLETED)
        finally:
            started.cancel()

    def prepare(self, session: Session) -> asyncio.Task[Any]:
        """Start the agent of a session in the background, ahead of its next prompt; see `Session.prepare`."""

        async def prepare() -> None:
            bind_session_id(session.id, session.redactor)
            if not self._closing:
                await session.prepare()

        return self._run_in_background(prepare())

    def end_unstored(self, why: str) -> None:
        """End the runs that `close` cannot end in time, for their readers only."""
        for session in list(self._known.values()):
            session.end_unstored(why)
        self.changes.close()

    @property
    def held(self) -> list[Session]:
        """Those that stay in memory."""
        return [occupant for occupant in self._admission.occupants if isinstance(occupant, Session)]

    def _announce(self, session: Session) -> None:
        if not session.deleted:
            self.changes.announce(session.id, session.owner)

    def _changed(self, session: Session) -> None:
        """Hold a session until the store has all of it; end the agent of an idle one after `sleep_after`."""
        if session.lost:
            return
        timer = self._sleep_timers.pop(session.id, None)
        if timer:
            timer.cancel()
        if session.only_stored:
            self._admission.remove(session.id)
            return
        self._admission.add(session.id, session)
        if session.live is not None and session.state == "idle" and self._sleep_after and not self._closing:
            timer = self._shared.clock.call_later(self._sleep_after, self.end_agent_soon, session)
            self._sleep_timers[session.id] = timer

    def end_agent_soon(self, session: Session) -> None:
        """End the agent of a session in the background, unless its state changes first."""
        state = session.state

        async def end() -> None:
            bind_session_id(session.id, session.redactor)
            try:
                async with session.lock:
                    await session.sleep(state)
            finally:
                session.evicting = False

        session.evicting = True
        self._run_in_background(end())

    def _run_in_background(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _summary(
    session_id: str,
    agent: str,
    config: SessionSettings,
    state: Literal["idle", "running", "waiting"],
    details: SessionDetails | None,
    created_at: float,
    usage: Usage | None,
    cwd: str | None,
    forked_from: str | None,
) -> SessionSummary:
    """The summary of a stored session. `details` is None for a session that was deleted meanwhile."""
    if details is None:
        plain = SessionSummary(session_id, agent, config, state, None, None, None, created_at, created_at, None)
    else:
        reason, row = details.run.stop_reason if details.run else None, details.row
        error, title, used_at = details.error, displayed_title(row), row.used_at
        plain = SessionSummary(session_id, agent, config, state, reason, error, title, created_at, used_at, usage)
    last_seq, queued = (details.last_seq, details.queued) if details is not None else (0, 0)
    return replace(plain, cwd=cwd, forked_from=forked_from, last_seq=last_seq, queued=queued)


def _chosen(agent: str, config: SessionSettings) -> ChosenFolder:
    """The folder that the settings of a session name."""
    return ChosenFolder(agent, config.options.get(CWD.name), config.workspace_key)


def _chosen_of(record: SessionRecord) -> ChosenFolder:
    """The folder that a stored session names."""
    return ChosenFolder(record.agent, record.config.get("options", {}).get(CWD.name), record.config.get("workspace_key"))


def _folders_of(record: SessionRecord, resolved: Mapping[ChosenFolder, str | None]) -> tuple[str | None, ...]:
    """The folder of a stored session, and that of its worktree."""
    worktree = SessionWorktree.from_json(record.config.get("worktree"))
    own = resolved[_chosen_of(record)]
    return (own,) if worktree is None else (own, worktree.folder)


@dataclass(frozen=True, slots=True)
class StoredWaiting:
    """What a session waits for, and since when, as it is stored."""

    pending: Sequence[PendingCall]
    since: float | None


def _waits(details: SessionDetails | None) -> bool:
    return details is not None and details.run is not None and details.run.state == "waiting"


def _with_state(summary: SessionSummary, session: Session | None) -> SessionSummary:
    """The summary with what only a session in memory has; None for a session that is not."""
    if session is None:
        return summary
    pending, since = (session.pending_calls, session.waiting_since) if summary.state == "waiting" else ([], None)
    last = max(summary.last_seq, session.log.last)
    queued, stopped = len(session.queue), session.queue.stopped
    return replace(summary, pending=pending, waiting_since=since, last_seq=last, queued=queued, queue_stopped=stopped)


def no_agent(session_id: str, agent: str) -> AgentProblem:
    """Return the error for a session whose agent no daemon has."""
    return AgentProblem(f"session {session_id!r} is of agent {agent!r}, which is no longer in the configuration")


def no_session(session_id: str) -> NotFound:
    """Return the error for a session that does not exist, or is another's."""
    return NotFound(f"there is no session {session_id!r}; GET the list of sessions for those that exist")
