"""The sessions of one node of a cluster: the node that has the lease of a session serves all of it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from drivers.runtime.confined_files import discard_tree
from gateway.agents.configured_agents import CWD, Agents, ConfiguredAgent
from gateway.cluster.absent_agent import AbsentAgent
from gateway.cluster.leases import HeldLease
from gateway.cluster.node import Node
from gateway.errors import LeaseLost, NodeAway, NoNode, StoreUnavailable
from gateway.observability.logs import bind_session_id
from gateway.runs.admission_and_eviction import AdmissionControl
from gateway.runs.cancellation import all_ended
from gateway.runs.shared_services import SharedServices
from gateway.security.authentication import Caller
from gateway.security.redaction import Redactor
from gateway.sessions.registry import FILTERED_ROWS, Sessions, StoredWaiting, no_agent, no_session
from gateway.sessions.session import Session
from gateway.sessions.settings import SessionSettings
from gateway.store import RunRecord, SessionDetails, SessionRecord, Store, WorktreeRecord
from gateway.store.fencing import Lease
from gateway.worktrees.worktrees import node_in

log = logging.getLogger(__name__)

STORED_WITHIN = 2.0
"""Seconds in which the end of a turn of another node is waited for."""
LOOK_AGAIN = 0.1
"""Seconds between two looks for it."""
KEPT_WAITING = 1000
"""Sessions at other nodes whose pending calls are kept. To find them, all messages of a session are read."""
MOVED_AFTER = 86400.0
"""Seconds without a change after which the private folder of an agent is removed because another node has its session."""


class ClusterSessions(Sessions):
    """The sessions of `node`. Lists are read from the store, which has the sessions of all nodes."""

    def __init__(
        self, agents: Agents, shared: SharedServices, admission: AdmissionControl, sleep_after: float, node: Node
    ) -> None:
        super().__init__(agents, shared, admission, sleep_after)
        self._node = node
        self._waiting: dict[str, _Waiting] = {}
        """Of sessions that wait at other nodes, those that were listed last."""

    async def place(self, agent: str, folder: str | None, *, again: bool = False, here: bool = False) -> None:
        await self._node.directory.place(agent, folder, preferred=self._node.id if here else None, again=again)

    async def require_worktree_here(self, worktree: WorktreeRecord) -> None:
        if not await asyncio.to_thread(self._shared.worktrees.is_here, worktree):
            raise await self._node.directory.elsewhere(node_in(worktree.path), worktree.session_id)

    @asynccontextmanager
    async def _creating(self, session_id: str) -> AsyncIterator[tuple[Store, Callable[[], Lease | None]]]:
        async with self._node.leases.creating(session_id) as store:
            yield store, lambda: self._node.leases.get(session_id)

    async def get(
        self, caller: Caller, session_id: str, *, reading: bool = False, deleting: bool = False, here: bool = False
    ) -> Session:
        """As Sessions.get. This node has the lease of the session then, or SessionElsewhere is raised.

        Where the nodes that have its agent or its worktree are out of reach, any node can show it (`reading`) and delete it
        (`deleting`), without them. `here`: this node gets the lease that no node has, if it can, however loaded it is.
        """
        found = self._held_here(session_id)
        if found is None:
            async with self._loading.setdefault(session_id, asyncio.Lock()):
                found = await self._leased(caller, session_id, anywhere=reading or deleting, here=here)
            if not deleting:
                await found.deny_overdue()
        elif (lease := self._node.leases.get(session_id)) is not None:
            lease.used_at = self._node.leases.clock.monotonic()
        if not caller.sees(found.owner):
            raise no_session(session_id)
        bind_session_id(found.id, found.redactor)
        if not reading and not deleting and (self._node.directory.draining or isinstance(found.agent, AbsentAgent)):
            await self._move(found)
        return found

    async def of_conversation(self, caller: Caller, digest: bytes) -> Session | None:
        """As Sessions.of_conversation, and None if the node that has the session cannot be reached."""
        try:
            return await super().of_conversation(caller, digest)
        except (NoNode, NodeAway) as error:
            log.info("a conversation does not go on in its session: %s", error)
            return None

    async def get_history(self, caller: Caller, session_id: str) -> Session:
        """As Sessions.get_history. It needs neither the lease of the session nor its agent.

        A turn that another node runs is waited for, STORED_WITHIN seconds at most: its client may have its end before the store.
        """
        found = self._held_here(session_id)
        if found is None:
            await self._until_stored(session_id)
            record = await self._record(caller, session_id)
            found = await self._restored(record, self._agents.find(record.agent) or AbsentAgent(record.agent))
            # Nothing is added to this log: a reader that follows it would wait for ever.
            found.log.close()
        if not caller.sees(found.owner):
            raise no_session(session_id)
        bind_session_id(found.id, found.redactor)
        return found

    async def _until_stored(self, session_id: str) -> None:
        for _ in range(round(STORED_WITHIN / LOOK_AGAIN)):
            run = await self._store.runs.last(session_id)
            if run is None or run.state != "running":
                return
            await self._shared.clock.sleep(LOOK_AGAIN)

    def _held_here(self, session_id: str) -> Session | None:
        known = self._known.get(session_id)
        return known if known is not None and known.lease is not None and known.lease.held else None

    def _current(self, session_id: str) -> Session | None:
        return self._held_here(session_id)

    async def _move(self, session: Session) -> None:
        """Release a session that is not at work, and raise SessionElsewhere, for a node that is drained or has not its agent.

        A session that is always at work when the node releases what is unused would never leave it. One with a worktree stays,
        and so does one whose agent no other node offers; if this one has not that either, raises NoNode or AgentProblem.
        """
        absent = isinstance(session.agent, AbsentAgent)
        if session.config.worktree is not None and not absent:
            return
        chosen = self._node.directory.choose(session.agent.name, session.config.options.get(CWD.name))
        if chosen is None and absent:
            self._node.directory.offered_elsewhere(session.agent.name)
            raise no_agent(session.id, session.agent.name)
        if chosen is None:
            return
        await self._drain(session)
        if session.lease is not None and session.is_unused:
            await session.lease.release()
            session.log.release_readers()
            raise await self._node.directory.elsewhere(chosen, session.id)

    async def _leased(self, caller: Caller, session_id: str, *, anywhere: bool, here: bool) -> Session:
        """The session, whose lease this node has then. Raises SessionElsewhere.

        Where no node has its agent or its worktree at this moment, raises NoNode or NodeAway, unless `anywhere` is set.
        """
        if (held := self._held_here(session_id)) is not None:
            return held
        known = self._known.get(session_id)
        if not here and (elsewhere := self._node.directory.remembered_elsewhere(session_id)) is not None:
            raise elsewhere
        # At the same time: a request that is forwarded waits for both.
        record, current = await asyncio.gather(self._store.sessions.get(session_id), self._store.leases.get(session_id))
        if record is None or not caller.sees(record.owner):
            raise no_session(session_id)
        if current is not None and not current.released and current.node != self._node.id:
            # Also one that has expired: its node may only have been without the database. If it is dead, it is taken over soon.
            self._node.directory.remember(session_id, current.node)
            raise await self._node.directory.elsewhere(current.node, session_id)
        try:
            await self._place_stored(record, self._node.id if here else current.node if current is not None else None)
        except (NoNode, NodeAway):
            if not anywhere:
                raise
        previous = known.lease if known is not None else None
        lease = await self._node.leases.hold(session_id, previous if isinstance(previous, HeldLease) else None)
        if known is not None and known.lease is lease:
            return known
        try:
            return await self._acquired(caller, session_id, lease, anywhere=anywhere)
        except BaseException:
            await lease.release()
            raise

    async def _acquired(self, caller: Caller, session_id: str, lease: HeldLease, *, anywhere: bool) -> Session:
        # Again: another node may have changed it before this one got the lease.
        record = await self._record(caller, session_id)
        agent = self._agents.find(record.agent)
        if agent is None and not anywhere:
            raise no_agent(session_id, record.agent)
        session = await self._restored(record, agent or AbsentAgent(record.agent), lease)
        self._known[session_id] = session
        if agent is not None:
            session.queue.advance()
        return session

    async def _with_queued(self) -> list[str]:
        # The node that has the lease of a session goes on with its queue.
        if self._node.directory.draining:
            return []
        return await self._store.queued_messages.to_begin(without_lease=True)

    async def _place_stored(self, record: SessionRecord, last: str | None) -> None:
        """Raise SessionElsewhere unless this node is the one for a session without an owner, which the node `last` had.

        Raises NoNode, and NodeAway if its worktree is out of reach.
        """
        if record.config.get("worktree") is not None:
            worktree = await self._store.worktrees.get(record.id)
            if worktree is not None and not await asyncio.to_thread(self._shared.worktrees.is_here, worktree):
                raise await self._node.directory.only_at(node_in(worktree.path), record.id, "the worktree")
            last = self._node.id if worktree is not None else last
        await self._node.directory.place(record.agent, record.config.get("options", {}).get(CWD.name), record.id, last)

    def _session(
        self,
        record: SessionRecord,
        config: SessionSettings,
        agent: ConfiguredAgent,
        last_seq: int,
        redactor: Redactor,
        lease: Lease | None = None,
    ) -> Session:
        session = super()._session(record, config, agent, last_seq, redactor, lease)
        if lease is not None:
            lease.on_lost = partial(self._lost, session)
        return session

    def _services(self, lease: Lease | None) -> SharedServices:
        """Of a session without a lease, which is only read, no overdue calls are denied."""
        if lease is None:
            return replace(self._shared, approval_timeout=0.0)
        return replace(self._shared, store=self._store.fenced(lease))

    def _lost(self, session: Session) -> None:
        """Another node has taken over a session: those who read it here get LeaseLost."""
        session.leave(LeaseLost(session.id))
        session.log.lose()
        if self._known.get(session.id) is session:
            del self._known[session.id]
        self._admission.remove(session.id)
        timer = self._sleep_timers.pop(session.id, None)
        if timer:
            timer.cancel()
        self._run_in_background(session.lose())

    async def release_unused(self, unused: float) -> None:
        """Release the leases of sessions that are stored completely, without followers, and unused for so many seconds.

        If the node takes no new work, of all sessions but those at work, whose agents are ended. Who follows one gets LeaseLost.
        """
        draining = self._node.directory.draining
        if draining:
            await all_ended(self._drain(session) for session in list(self._known.values()))
            unused = 0.0
        now = self._node.leases.clock.monotonic()
        due: list[HeldLease] = []
        followed: list[Session] = []
        for lease in self._node.leases.all:
            session = self._known.get(lease.log_id)
            if lease.in_use or now - lease.used_at < unused or lease.log_id in self._loading:
                continue
            if session is None:
                due.append(lease)
            elif session.lease is lease and session.is_unused and (draining or not session.log.is_followed):
                due.append(lease)
                followed.append(session)
        await self._node.leases.release(*due)
        for session in followed:
            session.log.release_readers()

    async def stored(self) -> bool:
        return all(await asyncio.gather(*(session.log.written() for session in self.held)))

    async def announce_stored(self, session_id: str) -> None:
        """This node has changed a session in the store only."""
        for record in await self._store.sessions.some([session_id]):
            self.changes.announce(record.id, record.owner)

    async def _drain(self, session: Session) -> None:
        bind_session_id(session.id, session.redactor)
        if session.state != "running" and not session.lock.locked():
            async with session.lock:
                await session.sleep(session.state)

    async def _waiting_of(
        self, records: Sequence[SessionRecord], details: Mapping[str, SessionDetails]
    ) -> tuple[Mapping[str, Session], Mapping[str, StoredWaiting]]:
        loaded = {one.id: session for one in records if (session := self._current(one.id)) is not None}
        return loaded, {one.id: await self._stored_waiting(one, details[one.id]) for one in records if one.id not in loaded}

    async def _stored_waiting(self, record: SessionRecord, details: SessionDetails) -> StoredWaiting:
        """What a session waits for that this node of a cluster has no lease of. It is kept as long as the session is the same."""
        known = self._waiting.pop(record.id, None)
        if known is None or (known.run, known.last_seq, known.config) != (details.run, details.last_seq, record.config):
            known = _Waiting(details.run, details.last_seq, record.config, StoredWaiting((), None))
            agent = self._agents.find(record.agent)
            if agent is not None and details.run is not None:
                config = self._settings(record, agent, listed=True)
                session = self._session(record, config, agent, details.last_seq, self._redactor_of(config))
                await session.restore_waiting(details.run)
                known = replace(known, found=StoredWaiting(session.pending_calls, session.waiting_since))
        self._waiting[record.id] = known
        while len(self._waiting) > KEPT_WAITING:
            del self._waiting[next(iter(self._waiting))]
        return known.found

    async def _delete(self, session: Session) -> None:
        try:
            await super()._delete(session)
        except BaseException:
            if isinstance(session.agent, AbsentAgent) and session.lease is not None:
                # A node that has the agent may go on with the session at once.
                with suppress(StoreUnavailable):
                    await session.lease.release()
            raise

    async def remove_left(self) -> None:
        """Remove the files of sessions that other nodes have deleted, and private folders of agents whose sessions other nodes
        have had for MOVED_AFTER seconds.

        An agent that comes back after that begins anew with the history.
        """
        folders = await asyncio.to_thread(_session_folders, self._shared.states)
        ids = list({*folders, *await asyncio.to_thread(self._shared.transcripts.sessions)})
        for first in range(0, len(ids), FILTERED_ROWS):
            part = ids[first : first + FILTERED_ROWS]
            # After the folders are listed: a session is stored before it has one.
            stored = {record.id for record in await self._store.sessions.some(part)}
            leases = await self._store.leases.of(part)
            now = time.time()
            for session_id in part:
                lease, unused_for = leases.get(session_id), now - folders.get(session_id, now)
                if session_id not in stored:
                    await self._remove_files(session_id, worktree=True)
                elif lease is not None and lease.node != self._node.id and unused_for > MOVED_AFTER:
                    await self._remove_moved(session_id)

    async def _remove_moved(self, session_id: str) -> None:
        # A request for the session would acquire its lease meanwhile, and start an agent in the folder.
        async with self._loading.setdefault(session_id, asyncio.Lock()):
            lease = await self._store.leases.get(session_id)
            if self._current(session_id) is None and lease is not None and lease.node != self._node.id:
                await asyncio.to_thread(discard_tree, self._shared.states / session_id)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What a session waits for, and of what that was read."""

    run: RunRecord | None
    last_seq: int
    config: Mapping[str, Any]
    found: StoredWaiting


def _session_folders(states: Path) -> dict[str, float]:
    """The sessions that have a folder here, and when that was changed last, in seconds since the epoch."""
    found: dict[str, float] = {}
    with suppress(FileNotFoundError), os.scandir(states) as entries:
        for entry in entries:
            if entry.name.startswith("sess_"):
                with suppress(OSError):
                    found[entry.name] = entry.stat(follow_symlinks=False).st_mtime
    return found
