"""The nodes of the cluster, as this one knows them by its last heartbeat, and which of them is to do what."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.errors import ConfigError, GatewayError, NodeAway, NodeUnknown, NoNode, SessionElsewhere, StoreUnavailable
from gateway.security.authentication import request_is_forwarded
from gateway.store.nodes import NodeRecord, NodeReport

LOOK_UP_PAUSE = 0.5
"""Seconds between two searches for nodes that are not known here."""
STARTS_WITHIN = 1.0
"""Seconds after which the load that a node reports has the agent of a session that was placed there."""
RETURNS_WITHIN = 300.0
"""Seconds without a heartbeat after which a node is not expected back soon: the restart of a machine takes less.

The rows of nodes that have died stay for a day and longer.
"""
PLACES = 10_000
"""Logs of which a node remembers where they are."""
LookUp = Callable[[], Awaitable[Sequence[NodeRecord]]]
"""Reads all nodes from the store."""


@dataclass(frozen=True, slots=True)
class RunningNode:
    """A node that has had a heartbeat lately. It is another one after a restart, or with another address (its base URL)."""

    id: str
    address: str
    started_at: float


@dataclass(frozen=True, slots=True)
class _Node:
    record: NodeRecord
    beat_at: float
    """When its last heartbeat was, by the monotonic clock of this node."""


class NodeDirectory:
    """Nodes without a heartbeat for `silent` seconds get no new work. `report` is about this node.

    A node that is not known, or that cannot be reached at its address, is searched for by `look_up`.
    """

    def __init__(
        self,
        report: Callable[[], NodeReport],
        silent: float,
        clock: Clock = SYSTEM_CLOCK,
        look_up: LookUp | None = None,
    ) -> None:
        self._report, self.silent, self._clock, self._look_up = report, silent, clock, look_up
        self._refreshed = asyncio.Event()
        self._looking_up: asyncio.Future[None] | None = None
        self._looked_up_at = float("-inf")
        self.node = report().id
        self._nodes: dict[str, _Node] = {}
        self._placed: defaultdict[str, list[float]] = defaultdict(list)
        """When sessions and tasks were placed at each node whose load, as it is known here, may not have them."""
        self._places: dict[str, str] = {}
        """The nodes that had logs when somebody asked for them. One that has a log no more refuses what is forwarded to it."""
        self._silenced: set[str] = set()
        """Nodes that were silent at the last update."""
        self._lost: set[str] = set()
        """Nodes that were silent at two updates. What is sent to them may wait for ever: a stopped process keeps connections."""
        self._unreachable: dict[str, float] = {}
        self.on_lost: Callable[[str], None] = lambda _: None
        """Called with the id of a node that has stopped, or was silent at two updates: it answers no request any more."""
        self.draining = False
        """Whether this node takes no new work."""

    def update(self, records: Sequence[NodeRecord]) -> None:
        """These are all nodes, as they have just been read with a heartbeat of this one."""
        self.refresh(records)
        self._report_silent()

    def refresh(self, records: Sequence[NodeRecord]) -> None:
        """These are all nodes, as they have just been read."""
        now, before = self._clock.monotonic(), self._nodes
        self._nodes = {record.report.id: _Node(record, now - record.silent_for) for record in records}
        for node, found in self._nodes.items():
            self._placed[node] = [at for at in self._placed[node] if at > found.beat_at - STARTS_WITHIN]
            if node in before and _has_moved(before[node].record, found.record):
                self._unreachable.pop(node, None)
        self._forget_places(before)
        stopped = before.keys() - self._nodes.keys()
        silent = {node for node in self._nodes if not self.lives(node)}
        self._silenced &= silent
        self._lost &= silent
        own = self._nodes.get(self.node)
        self.draining = self.draining or (own is not None and own.record.state == "draining")
        for node in stopped:
            self.on_lost(node)
        self._refreshed.set()
        self._refreshed = asyncio.Event()

    def _forget_places(self, before: Mapping[str, _Node]) -> None:
        """Forget the logs of nodes that have changed since these were read, and may have released them."""
        changed = {
            node
            for node, known in before.items()
            if node not in self._nodes or _terms(known.record) != _terms(self._nodes[node].record)
        }
        if changed:
            self._places = {log_id: node for log_id, node in self._places.items() if node not in changed}

    def _report_silent(self) -> None:
        # Twice: after a failure of the database all nodes have been silent.
        silent = {node for node in self._nodes if not self.lives(node)}
        lost, before = silent & self._silenced, self._lost
        self._silenced, self._lost = silent, lost
        for node in lost - before:
            self.on_lost(node)

    def unreachable(self, node: str) -> None:
        """Choose another node for what is new: there is no connection to this one, whatever its heartbeats say."""
        self._unreachable[node] = self._clock.monotonic()
        self._places.clear()

    def remembered_elsewhere(self, log_id: str) -> SessionElsewhere | None:
        """The error that forwards a request to the node that had a log, by what is remembered.

        None if that is not known, or the node is out of reach.

        With it the store is not read for each request that is forwarded. It is None for one that was forwarded to this node: two
        nodes might each take the other one for that of the session.
        """
        if request_is_forwarded.get():
            return None
        node = self._places.get(log_id)
        found = None if node is None else self._nodes.get(node)
        if node is None or found is None or not self._is_reachable(node):
            return None
        return SessionElsewhere(node, found.record.report.address, log_id)

    def remember(self, log_id: str, node: str) -> None:
        """Remember the node that has a log.

        It is forgotten when this node gets the log (`forget`), and when logs may have moved: a node is out of reach
        (`unreachable`), has refused a request (`look_again`), or was stopped, restarted, drained or changed (`refresh`).
        """
        if len(self._places) >= PLACES:
            self._places.clear()
        self._places[log_id] = node

    def forget(self, log_id: str) -> None:
        """This node has the log now."""
        self._places.pop(log_id, None)

    def lives(self, node: str) -> bool:
        """Whether a node has had a heartbeat lately. This one has, by definition."""
        found = self._nodes.get(node)
        return node == self.node or (found is not None and self._clock.monotonic() - found.beat_at < self.silent)

    @property
    def running(self) -> frozenset[RunningNode]:
        """The other nodes that have had a heartbeat lately, drained nodes included."""
        records = [found.record for node, found in self._nodes.items() if node != self.node and self.lives(node)]
        return frozenset(RunningNode(one.report.id, one.report.address, one.started_at) for one in records)

    async def changed(self, running: frozenset[RunningNode]) -> None:
        """Return once other nodes run than these. It is known with each heartbeat of this node."""
        while self.running == running:
            await self._refreshed.wait()

    async def elsewhere(self, node: str, log_id: str | None) -> GatewayError:
        """The error that forwards a request to a node, for the caller to raise."""
        if node not in self._nodes or node in self._unreachable or node in self._lost:
            await self.look_again()
        found = self._nodes.get(node)
        if node in self._lost:
            return NodeUnknown(
                f"{log_id!r} is at the node {node!r}, which has not reported for {self.silent:g} seconds; another node takes it "
                "over soon: send the request again"
            )
        if found is None:
            return NodeUnknown(f"{log_id!r} belongs to the node {node!r}, which is not known here; send the request again later")
        return SessionElsewhere(node, found.record.report.address, log_id)

    async def only_at(self, node: str, log_id: str, why: str) -> GatewayError:
        """The error for a session that no other node can go on with, because of `why`, for the caller to raise."""
        if not self.lives(node):
            await self.look_again()
        found = self._nodes.get(node)
        if found is not None and self.lives(node) and found.record.state == "ready":
            return await self.elsewhere(node, log_id)
        state = "is drained" if found is not None and self.lives(node) else "does not run"
        return NodeAway(f"{why} of {log_id!r} is on the node {node!r}, which {state}; the session goes on when that node is back")

    async def look_again(self) -> None:
        """Read the nodes from the store, unless that was done just now: one may have been started, drained or stopped.

        Without the store they stay as they are known. What is remembered of logs is forgotten.
        """
        self._places.clear()
        if self._look_up is None:
            return
        if self._looking_up is None:
            if self._clock.monotonic() - self._looked_up_at < LOOK_UP_PAUSE:
                return
            self._looking_up = asyncio.ensure_future(self._read_nodes(self._look_up))
        await asyncio.shield(self._looking_up)

    async def _read_nodes(self, look_up: LookUp) -> None:
        try:
            with suppress(StoreUnavailable, ConfigError):
                self.refresh(await look_up())
        finally:
            self._looking_up, self._looked_up_at = None, self._clock.monotonic()

    async def place(
        self,
        agent: str,
        folder: str | None,
        log_id: str | None = None,
        preferred: str | None = None,
        *,
        again: bool = False,
    ) -> None:
        """Raise SessionElsewhere unless this node is the one for a session or a task of this agent in this folder.

        A request that was forwarded to this node belongs to it, unless it is drained. With `again` the same is asked once more
        where this node is the one. Raises NoNode.
        """
        if request_is_forwarded.get() and not self.draining:
            if not again:
                self._note_placed(self.node)
            return
        chosen = self.choose(agent, folder, preferred)
        if chosen is None:
            if request_is_forwarded.get():
                return
            if self.draining:
                raise NoNode(agent, drained=True)
            self._check_offered(agent)
            # What is wrong with the request is reported here.
            return
        if chosen != self.node or not again:
            self._note_placed(chosen)
        if chosen != self.node:
            raise await self.elsewhere(chosen, log_id)

    def _note_placed(self, node: str) -> None:
        self._placed[node].append(self._clock.monotonic())

    def choose(
        self, agent: str, folder: str | None, preferred: str | None = None, *, without: Collection[str] = ()
    ) -> str | None:
        """The node for a session or a task: the least loaded of those that are ready, offer the agent and have the folder.

        The nodes of `without` are left out. The preferred node, which had the session last, is chosen if it is one of these.
        None if there are none.
        """
        found = {
            report.id: report
            for report in self._candidates()
            if agent in report.agents and _has(report, folder) and report.id not in without
        }
        if preferred in found:
            return preferred
        if not found:
            return None
        return min(found.values(), key=self._load).id

    @property
    def others(self) -> list[str]:
        """The ids of the other nodes that take new work."""
        return [report.id for report in self._candidates() if report.id != self.node]

    def offered_elsewhere(self, agent: str, without: Collection[str] = ()) -> SessionElsewhere | None:
        """The error that forwards a request to a node that offers an agent; None if there is none, or this one does.

        A request that was forwarded to this node is not forwarded again. The nodes of `without` are left out. Raises NoNode.
        """
        if request_is_forwarded.get():
            return None
        chosen = self.choose(agent, None, without=without)
        if chosen is None:
            self._check_offered(agent)
        if chosen is None or chosen == self.node:
            return None
        return SessionElsewhere(chosen, self._nodes[chosen].record.report.address)

    def _check_offered(self, agent: str) -> None:
        """Raise NoNode if other nodes have an agent, and all nodes that have it are silent, drained or cannot be reached.

        Nodes that are not expected back soon do not count: what is wrong with the request is reported then.
        """
        if any(agent in report.agents for report in self._candidates()):
            return
        now = self._clock.monotonic()
        expected = [
            node.record.report
            for node_id, node in self._nodes.items()
            if node_id != self.node and now - node.beat_at < RETURNS_WITHIN
        ]
        if any(agent in report.agents for report in expected):
            raise NoNode(agent)

    def _candidates(self) -> list[NodeReport]:
        others = [
            node.record.report
            for node in self._nodes.values()
            if node.record.report.id != self.node and node.record.state == "ready" and self._is_reachable(node.record.report.id)
        ]
        return others if self.draining else [self._report(), *others]

    def _is_reachable(self, node: str) -> bool:
        since = self._unreachable.get(node)
        return self.lives(node) and (since is None or self._clock.monotonic() - since >= self.silent)

    def _load(self, report: NodeReport) -> tuple[float, bool, str]:
        known = self._nodes.get(report.id)
        reported = known.record.report.live_agents if known is not None else 0
        # This node's own report is of this moment, but sessions that were placed here just now have no agent yet.
        agents = max(reported + len(self._placed[report.id]), report.live_agents)
        # Of equal nodes this one, which needs no forwarding.
        return agents / max(report.agent_slots, 1), report.id != self.node, report.id


def _has_moved(before: NodeRecord, now: NodeRecord) -> bool:
    """Whether a node has been started again, or has another address."""
    return (before.started_at, before.report.address) != (now.started_at, now.report.address)


def _terms(record: NodeRecord) -> tuple[object, ...]:
    """What decides whether the sessions of a node go on there."""
    report = record.report
    return record.started_at, record.state, report.address, report.agents, report.folders


def _has(report: NodeReport, folder: str | None) -> bool:
    """Whether a node may work in a folder. Relative folders are in the agent's own, which every node has."""
    if not report.folders or folder is None or not os.path.isabs(folder):
        return True
    wanted = os.path.normpath(folder)
    return any(wanted == known or wanted.startswith(known.rstrip("/") + "/") for known in map(os.path.normpath, report.folders))
