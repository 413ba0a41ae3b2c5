"""Queries about the nodes of a cluster. Times are of the database's clock (gateway/store/clock.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from gateway.store import schema
from gateway.store.clock import DatabaseTime
from gateway.store.database import Database
from gateway.store.leases import renew_leases

_TABLE = schema.nodes
State = Literal["ready", "draining"]
NODES = "nodes"
"""What listeners are notified of, in the place of a log, when a node starts, stops or is drained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a node reports about itself with each heartbeat. `address` is its URL for the other nodes.

    `digests` are those of what should be the same on all nodes, by its name (gateway/nodes/configuration_digests.py).
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


class NodeRepository:
    """The nodes by their ids."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def start(self, report: NodeReport, forget: float) -> None:
        """Stores a node that starts now, as ready, in the place of its earlier process. Nodes without a heartbeat for `forget`
        seconds are deleted.
        """

        def transaction(connection: Connection) -> None:
            connection.execute(delete(_TABLE).where(_TABLE.c.heartbeat_at < DatabaseTime() - forget)).close()
            connection.execute(delete(_TABLE).where(_TABLE.c.id == report.id)).close()
            started = {"state": "ready", "started_at": DatabaseTime(), "heartbeat_at": DatabaseTime()}
            connection.execute(insert(_TABLE).values(**_values(report), id=report.id, **started)).close()

        await self._database.write(transaction, log_id=NODES)

    async def beat(self, report: NodeReport, seconds: float) -> tuple[dict[str, int], list[NodeRecord]]:
        """Stores a heartbeat, and extends all leases of the node, in one transaction.

        Returns the tokens of its leases by log, and all nodes. A node whose row is missing is stored again.
        """

        def transaction(connection: Connection) -> tuple[dict[str, int], list[NodeRecord]]:
            values = _values(report)
            changed = connection.execute(_BEAT, {**values, "of_node": report.id}).rowcount
            if not changed:
                started = {"state": "ready", "started_at": DatabaseTime(), "heartbeat_at": DatabaseTime()}
                connection.execute(insert(_TABLE).values(**values, id=report.id, **started)).close()
            return renew_leases(connection, report.id, seconds), _records(connection)

        return await self._database.write(transaction)

    async def note_alive(self, node: str) -> None:
        """Stores a heartbeat and nothing else: it fits into the row's page, also on a full disk."""
        statement = update(_TABLE).where(_TABLE.c.id == node).values(heartbeat_at=DatabaseTime())
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def drain(self, node: str) -> bool:
        """Stores that a node is to take no new work. Returns whether there is such a node."""
        statement = update(_TABLE).where(_TABLE.c.id == node).values(state="draining")
        return await self._database.write(lambda connection: bool(connection.execute(statement).rowcount), log_id=NODES)

    async def remove(self, node: str) -> None:
        """Deletes a node that has stopped."""
        statement = delete(_TABLE).where(_TABLE.c.id == node)
        await self._database.write(lambda connection: connection.execute(statement).close(), log_id=NODES)

    async def all(self) -> list[NodeRecord]:
        """Returns all nodes, in the order of their ids."""
        return await self._database.read(_records)


_REPORTED = (
    "address", "agents", "labels", "folders", "version", "live_agents", "running_turns", "agent_slots", "digests",
)  # fmt: skip
_BEAT = (
    update(_TABLE)
    .where(_TABLE.c.id == bindparam("of_node"))
    .values({**{name: bindparam(name) for name in _REPORTED}, "heartbeat_at": DatabaseTime()})
)
_ALL = select(_TABLE, (DatabaseTime() - _TABLE.c.heartbeat_at).label("silent_for")).order_by(_TABLE.c.id)


def _values(report: NodeReport) -> dict[str, Any]:
    return {
        "address": report.address,
        "agents": json.dumps(report.agents),
        "labels": json.dumps(report.labels),
        "folders": json.dumps(report.folders),
        "version": report.version,
        "live_agents": report.live_agents,
        "running_turns": report.running_turns,
        "agent_slots": report.agent_slots,
        "digests": json.dumps(dict(report.digests)),
    }


def _records(connection: Connection) -> list[NodeRecord]:
    return [
        NodeRecord(
            NodeReport(
                id=row.id,
                address=row.address,
                agents=tuple(json.loads(row.agents)),
                labels=tuple(json.loads(row.labels)),
                folders=tuple(json.loads(row.folders)),
                version=row.version,
                live_agents=row.live_agents,
                running_turns=row.running_turns,
                agent_slots=row.agent_slots,
                digests=json.loads(row.digests),
            ),
            row.state,
            row.started_at,
            row.heartbeat_at,
            row.silent_for,
        )
        for row in connection.execute(_ALL)
    ]
