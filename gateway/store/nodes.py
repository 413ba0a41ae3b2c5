"""Queries about the nodes of a cluster. Times are of the database's clock (`{now}`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from gateway.store.backend import NodeIdTaken
from gateway.store.database import Database
from gateway.store.leases import renew_leases
from gateway.store.sql import Connection, Row, assignments, columns

State = Literal["ready", "draining"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a node reports about itself with each heartbeat. `address` is its URL for the other nodes.

    `digests` are those of what should be the same on all nodes, by its name (gateway/cluster/configuration_digests.py).
    """

    id: str
    address: str
    agents: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    version: str = ""
    live_agents: int = 0
    running_turns: int = 0
    agent_slots: int = 0
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A stored node. `silent_for` is the age of its last heartbeat, in seconds when it was read."""

    report: NodeReport
    state: State
    started_at: float
    heartbeat_at: float
    silent_for: float


_NAMES = tuple(column.name for column in fields(NodeReport))
_LISTS = ("agents", "labels", "folders")
_INSERT = f"""
INSERT INTO nodes ({columns(NodeReport)}, state, started_at, heartbeat_at)
VALUES ({", ".join(f":{name}" for name in _NAMES)}, 'ready', coalesce(:started_at, {{now}}), {{now}})
ON CONFLICT (id) DO NOTHING RETURNING started_at
"""
_BEAT = f"""
UPDATE nodes SET {assignments(name for name in _NAMES if name != "id")}, heartbeat_at = {{now}}
WHERE id = :id AND started_at = coalesce(:started_at, started_at)
"""
_ALL = f"SELECT {columns(NodeReport)}, state, started_at, heartbeat_at, {{now}} - heartbeat_at FROM nodes ORDER BY id"


class NodeRepository:
    """The nodes by their ids."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._started: dict[str, float] = {}
        """When the nodes of this process were started: another process with the id of one has another time."""

    async def start(self, report: NodeReport, forget: float) -> None:
        """Stores a node that starts now, as ready, in the place of its earlier process. Nodes without a heartbeat for `forget`
        seconds are deleted. Raises NodeIdTaken if another process with its id starts at the same time.
        """

        def transaction(connection: Connection) -> float:
            connection.execute("DELETE FROM nodes WHERE heartbeat_at < {now} - :forget", {"forget": forget})
            connection.execute("DELETE FROM nodes WHERE id = :id", {"id": report.id})
            started = connection.value(_INSERT, {**_values(report), "started_at": None})
            if started is None:
                raise NodeIdTaken(report.id)
            return float(started)

        self._started[report.id] = await self._database.write(transaction)

    async def beat(self, report: NodeReport, seconds: float) -> tuple[dict[str, int], list[NodeRecord]]:
        """Stores a heartbeat, and extends all leases of the node, in one transaction.

        Returns the tokens of its leases by log, and all nodes. A node whose row is missing is stored again. Raises NodeIdTaken
        if another process was started with the id of the node since.
        """

        def transaction(connection: Connection) -> tuple[dict[str, int], list[NodeRecord]]:
            values = {**_values(report), "started_at": self._started.get(report.id)}
            if not connection.changed(_BEAT, values) and connection.value(_INSERT, values) is None:
                raise NodeIdTaken(report.id)
            return renew_leases(connection, report.id, seconds), _records(connection)

        return await self._database.write(transaction)

    async def note_alive(self, node: str) -> None:
        """Stores a heartbeat and nothing else: it fits into the row's page, also on a full disk."""
        await self._execute("UPDATE nodes SET heartbeat_at = {now} WHERE id = :id", node)

    async def drain(self, node: str) -> bool:
        """Stores that a node is to take no new work. Returns whether there is such a node."""
        statement = "UPDATE nodes SET state = 'draining' WHERE id = :id"
        return await self._database.write(lambda connection: connection.changed(statement, {"id": node}) > 0)

    async def remove(self, node: str) -> None:
        """Deletes a node that has stopped."""
        await self._execute("DELETE FROM nodes WHERE id = :id", node)

    async def all(self) -> list[NodeRecord]:
        """Returns all nodes, in the order of their ids."""
        return await self._database.read(_records)

    async def _execute(self, statement: str, node: str) -> None:
        await self._database.write(lambda connection: connection.execute(statement, {"id": node}))


def _values(report: NodeReport) -> dict[str, Any]:
    values = {name: getattr(report, name) for name in _NAMES}
    lists = {name: json.dumps(values[name]) for name in _LISTS}
    return {**values, **lists, "digests": json.dumps(dict(report.digests))}


def _records(connection: Connection) -> list[NodeRecord]:
    return [_record(row) for row in connection.rows(_ALL)]


def _record(row: Row) -> NodeRecord:
    *reported, state, started_at, heartbeat_at, silent_for = row
    values = dict(zip(_NAMES, reported, strict=True))
    lists = {name: tuple(json.loads(values[name])) for name in _LISTS}
    report = NodeReport(**{**values, **lists, "digests": json.loads(values["digests"])})
    return NodeRecord(report, state, started_at, heartbeat_at, silent_for)
