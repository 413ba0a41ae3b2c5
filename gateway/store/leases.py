"""Queries about leases: which node may write a log. Times are of the database's clock (gateway/store/clock.py)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, func, insert, select, text, update
from sqlalchemy.sql.selectable import TextualSelect

from gateway.store import schema
from gateway.store.clock import TIME, DatabaseTime
from gateway.store.database import Database

_TABLE = schema.leases
_RELEASED = 0.0


class Lease(NamedTuple):
    """The right of a node to write a log. `valid` is whether it had not expired when it was read.

    `expires_at` is 0 once it is released. The token grows with each acquisition.
    """

    log_id: str
    node: str
    token: int
    expires_at: float
    valid: bool

    @property
    def released(self) -> bool:
        return self.expires_at == _RELEASED


class LeaseRepository:
    """The leases of all logs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def acquire(self, log_id: str, node: str, seconds: float, expected: int | None = None) -> Lease:
        """Gives a node the lease of a log that has none, whose lease is released, or is the node's own already.

        With `expected`, only that of a log whose lease has expired with this token. Returns the lease that is in force then,
        which may be another node's. One statement decides: of nodes that acquire at the same time one succeeds.
        """

        def transaction(connection: Connection) -> Lease:
            if expected is not None and connection.execute(_UNLOCKED, {"of_log": log_id}).first() is None:
                # A write of the node that has it is under way, or stopped in the middle: nobody waits for that.
                return _leases(connection, [log_id])[log_id]
            statement = _acquisition(connection.dialect.name, of_expired=expected is not None)
            values: dict[str, Any] = {"log_id": log_id, "node": node, "seconds": seconds}
            values |= {"expected": expected} if expected is not None else {}
            found = connection.execute(statement, values).first()
            return Lease(*found) if found is not None else _leases(connection, [log_id])[log_id]

        return await self._database.write(transaction)

    async def renew(self, node: str, seconds: float) -> dict[str, int]:
        """Extends all leases of a node, also those that have expired and are its own still. Returns their tokens by log."""
        return await self._database.write(lambda connection: renew_leases(connection, node, seconds))

    async def release(self, tokens: Sequence[tuple[str, int]]) -> None:
        """Releases leases, given as log and token. Those that have another token by now are not changed."""
        if tokens:
            rows = [{"of_log": log_id, "of_token": token} for log_id, token in tokens]
            await self._database.write(lambda connection: connection.execute(_RELEASE, rows).close())

    async def get(self, log_id: str) -> Lease | None:
        """Returns the lease of a log; None if it never had one."""
        return (await self.of([log_id])).get(log_id)

    async def of(self, log_ids: Sequence[str]) -> dict[str, Lease]:
        """Returns the leases of logs, by log."""
        return await self._database.read(lambda connection: _leases(connection, log_ids))

    async def unreleased(self, node: str) -> list[Lease]:
        """Returns the leases of a node that are not released, expired or not."""
        condition = (_TABLE.c.node == node) & (_TABLE.c.expires_at > _RELEASED)
        return await self._database.read(lambda connection: _found(connection, condition))

    async def abandoned(self, silent: float, limit: int = 500) -> list[Lease]:
        """Returns leases that have expired without a release, of nodes without a heartbeat in the last `silent` seconds."""
        nodes = schema.nodes
        beating = select(nodes.c.id).where(nodes.c.heartbeat_at > DatabaseTime() - silent)
        expired = (_TABLE.c.expires_at > _RELEASED) & (_TABLE.c.expires_at <= DatabaseTime())
        condition = expired & _TABLE.c.node.not_in(beating)
        return await self._database.read(lambda connection: _found(connection, condition, limit))

    async def held_by_others(self, node: str) -> set[str]:
        """Returns the logs of the leases that other nodes have not released."""
        query = select(_TABLE.c.log_id).where(_TABLE.c.expires_at > _RELEASED, _TABLE.c.node != node)
        return await self._database.read(lambda connection: set(connection.execute(query).scalars()))

    async def count_by_node(self) -> dict[str, int]:
        """Returns how many leases that are not released each node has."""
        query = select(_TABLE.c.node, func.count()).where(_TABLE.c.expires_at > _RELEASED).group_by(_TABLE.c.node)
        return await self._database.read(lambda connection: {row[0]: row[1] for row in connection.execute(query)})


_COLUMNS = (*_TABLE.columns, (_TABLE.c.expires_at > DatabaseTime()).label("valid"))
_RELEASE = (
    update(_TABLE)
    .where(_TABLE.c.log_id == bindparam("of_log"), _TABLE.c.token == bindparam("of_token"))
    .values(expires_at=_RELEASED)
)
_UNLOCKED = select(_TABLE.c.log_id).where(_TABLE.c.log_id == bindparam("of_log")).with_for_update(skip_locked=True)
_RENEW = (
    update(_TABLE)
    .where(_TABLE.c.node == bindparam("of_node"), _TABLE.c.expires_at > _RELEASED)
    .values(expires_at=DatabaseTime() + bindparam("seconds"))
    .returning(_TABLE.c.log_id, _TABLE.c.token)
)


_FIRST = insert(_TABLE).values(
    {"log_id": bindparam("log_id"), "node": bindparam("node"), "token": 1, "expires_at": DatabaseTime() + bindparam("seconds")}
)
_ACQUIRE = """
INSERT INTO leases (log_id, node, token, expires_at) VALUES (:log_id, :node, 1, {now} + :seconds)
ON CONFLICT (log_id) DO UPDATE SET node = excluded.node, token = leases.token + 1, expires_at = excluded.expires_at
WHERE {condition} RETURNING log_id, node, token, expires_at, expires_at > {now} AS valid
"""
_IS_FREE = f"leases.expires_at = {_RELEASED} OR leases.node = excluded.node"
_HAS_EXPIRED = f"leases.token = :expected AND leases.expires_at > {_RELEASED} AND leases.expires_at <= {{now}}"


def insert_lease(connection: Connection, log_id: str, node: str, seconds: float) -> None:
    """Gives a node the lease of a log that is created in this transaction, with the token 1."""
    connection.execute(_FIRST, {"log_id": log_id, "node": node, "seconds": seconds}).close()


def renew_leases(connection: Connection, node: str, seconds: float) -> dict[str, int]:
    """Extends all leases of a node within a transaction. Returns their tokens by log."""
    return {row.log_id: row.token for row in connection.execute(_RENEW, {"of_node": node, "seconds": seconds})}


def _leases(connection: Connection, log_ids: Sequence[str]) -> dict[str, Lease]:
    return {lease.log_id: lease for lease in _found(connection, _TABLE.c.log_id.in_(log_ids))}


def _found(connection: Connection, condition: Any, limit: int | None = None) -> list[Lease]:
    return [Lease(*row) for row in connection.execute(select(*_COLUMNS).where(condition).limit(limit))]


@cache
def _acquisition(dialect: str, *, of_expired: bool) -> TextualSelect:
    """The statement of `acquire`, for an expired lease or for one that is free. It returns no row where it changes nothing."""
    # As text: SQLAlchemy's construct is another one for each dialect, and importing PostgreSQL's takes 40 ms.
    now = TIME[dialect]
    condition = (_HAS_EXPIRED if of_expired else _IS_FREE).format(now=now)
    return text(_ACQUIRE.format(now=now, condition=condition)).columns(*_COLUMNS)
