"""The nodes of the cluster, as this one knows them by its last heartbeat, and which of them is to do what."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.errors import GatewayError, SessionElsewhere, ShuttingDown
from gateway.nodes.forwarded_requests import request_is_forwarded
from gateway.store.nodes import NodeRecord, NodeReport


class NodeUnknown(GatewayError):
    """The node that has a session is not known any more; another one takes the session over within seconds."""

    status = 503


@dataclass(frozen=True, slots=True)
class _Node:
    record: NodeRecord
    beat_at: float
    """When its last heartbeat was, by the monotonic clock of this node."""


class NodeDirectory:
    """Nodes without a heartbeat for `silent` seconds get no new work. `clock` is monotonic, `report` is about this node."""

    def __init__(self, report: Callable[[], NodeReport], silent: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._report, self._silent, self._clock = report, silent, clock
        self.node = report().id
        self._nodes: dict[str, _Node] = {}
        self._placed: Counter[str] = Counter()
        self._alive: set[str] = set()
        self._silenced: set[str] = set()
        self._unreachable: dict[str, float] = {}
        self.on_lost: Callable[[str], None] = lambda _: None
        """Called with the id of a node that has stopped, or was silent at two updates: what waits for it waits in vain."""
        self.draining = False
        """Whether this node takes no new work."""

    def update(self, records: Sequence[NodeRecord]) -> None:
        """These are all nodes, as they have just been read."""
        now = self._clock()
        self._nodes = {record.report.id: _Node(record, now - record.silent_for) for record in records}
        # What was placed since is in their reports, about.
        self._placed.clear()
        self._report_lost()
        own = self._nodes.get(self.node)
        self.draining = self.draining or (own is not None and own.record.state == "draining")

    def _report_lost(self) -> None:
        alive = {node for node in self._nodes if self.lives(node)}
        # Twice: after a failure of the database all nodes have been silent.
        silent = (self._alive | self._silenced) & self._nodes.keys() - alive
        lost = (self._alive | self._silenced) - self._nodes.keys() | silent & self._silenced
        self._alive, self._silenced = alive, silent - lost
        for node in lost:
            self.on_lost(node)

    def unreachable(self, node: str) -> None:
        """Choose another node for what is new: there is no connection to this one, whatever its heartbeats say."""
        self._unreachable[node] = self._clock()

    def lives(self, node: str) -> bool:
        """Whether a node has had a heartbeat lately. This one has, by definition."""
        found = self._nodes.get(node)
        return node == self.node or (found is not None and self._clock() - found.beat_at < self._silent)

    async def elsewhere(self, node: str, log_id: str | None) -> GatewayError:
        """The error that passes a request on to a node, for the caller to raise."""
        found = self._nodes.get(node)
        if found is None:
            return NodeUnknown(f"{log_id!r} belongs to the node {node!r}, which is not known here; send the request again later")
        return SessionElsewhere(node, found.record.report.address, log_id)

    async def place(self, agent: str, folder: str | None, log_id: str | None = None, preferred: str | None = None) -> None:
        """Raise SessionElsewhere unless this node is the one for a session or a task of this agent in this folder.

        A request that was forwarded to this node is not forwarded again. Raises ShuttingDown where this node takes no new work
        and no other offers the agent.
        """
        if request_is_forwarded.get():
            return
        chosen = self.choose(agent, folder, preferred)
        if chosen is None:
            if self.draining:
                raise ShuttingDown("this node takes no new work (it is drained), and no other node offers the agent; try again")
            # What is wrong with the request is reported here.
            return
        if chosen != self.node:
            raise await self.elsewhere(chosen, log_id)

    def choose(self, agent: str, folder: str | None, preferred: str | None = None) -> str | None:
        """The node for a session or a task: the least loaded of those that are ready, offer the agent and have the folder.

        The preferred node, which had the session last, is chosen if it is one of these. None if there are none.
        """
        found = {report.id: report for report in self._candidates() if agent in report.agents and _has(report, folder)}
        if preferred in found:
            return preferred
        if not found:
            return None
        chosen = min(found.values(), key=self._load)
        self._placed[chosen.id] += 1
        return chosen.id

    def _candidates(self) -> list[NodeReport]:
        others = [
            node.record.report
            for node in self._nodes.values()
            if node.record.report.id != self.node and node.record.state == "ready" and self._is_reachable(node.record.report.id)
        ]
        return others if self.draining else [self._report(), *others]

    def _is_reachable(self, node: str) -> bool:
        since = self._unreachable.get(node)
        return self.lives(node) and (since is None or self._clock() - since >= self._silent)

    def _load(self, report: NodeReport) -> tuple[float, bool, str]:
        agents = report.live_agents + (self._placed[report.id] if report.id != self.node else 0)
        # Of equal nodes this one, which needs no forwarding.
        return agents / max(report.agent_slots, 1), report.id != self.node, report.id


def _has(report: NodeReport, folder: str | None) -> bool:
    """Whether a node may work in a folder. Relative folders are in the agent's own, which every node has."""
    if not report.folders or folder is None or not os.path.isabs(folder):
        return True
    wanted = os.path.normpath(folder)
    return any(wanted == known or wanted.startswith(known.rstrip("/") + "/") for known in map(os.path.normpath, report.folders))
