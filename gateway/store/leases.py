"""Queries about leases: which node may write a log. Times are of the database's clock (`{now}`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.errors import LogDeleted
from gateway.store.database import Database
from gateway.store.sql import Connection, Parameters, Row

_RELEASED = 0.0
_COLUMNS = "log_id, node, token, expires_at, expires_at > {now} AS valid"
_UNLOCKED = "SELECT log_id FROM leases WHERE log_id = :log_id {for_update_skip_locked}"
_ACQUIRE = """
INSERT INTO leases (log_id, node, token, expires_at) VALUES (:log_id, :node, 1, {now} + :seconds)
ON CONFLICT (log_id) DO UPDATE SET node = excluded.node, token = leases.token + 1, expires_at = excluded.expires_at WHERE
"""
_ACQUIRE_FREE = f"{_ACQUIRE} leases.expires_at = 0 OR leases.node = excluded.node RETURNING {_COLUMNS}"
_ACQUIRE_EXPIRED = f"""
{_ACQUIRE} leases.token = :expected AND leases.expires_at > 0 AND leases.expires_at <= {{now}} RETURNING {_COLUMNS}
"""


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
        which may be another node's. One statement decides: of nodes that acquire at the same time one succeeds. Raises LogDeleted
        if the log was deleted meanwhile.
        """
        values = {"log_id": log_id, "node": node, "seconds": seconds, "expected": expected}

        def transaction(connection: Connection) -> Lease:
            if expected is None:
                found = connection.first(_ACQUIRE_FREE, values)
            elif connection.first(_UNLOCKED, values) is not None:
                found = connection.first(_ACQUIRE_EXPIRED, values)
            else:
                # A write of the node that has it is under way, or stopped in the middle: nobody waits for that.
                found = None
            if found is not None:
                return _lease(found)
            in_force = _leases(connection, [log_id])
            if not in_force:
                raise LogDeleted(log_id)
            return in_force[log_id]

        return await self._database.write(transaction)

    async def renew(self, node: str, seconds: float) -> dict[str, int]:
        """Extends all leases of a node, also those that have expired and are its own still. Returns their tokens by log."""
        return await self._database.write(lambda connection: renew_leases(connection, node, seconds))

    async def release(self, tokens: Sequence[tuple[str, int]]) -> None:
        """Releases leases, given as log and token. Those that have another token by now are not changed."""
        if tokens:
            statement = "UPDATE leases SET expires_at = 0 WHERE log_id = :log_id AND token = :token"
            rows = [{"log_id": log_id, "token": token} for log_id, token in tokens]
            await self._database.write(lambda connection: connection.execute_many(statement, rows))

    async def get(self, log_id: str) -> Lease | None:
        """Returns the lease of a log; None if it never had one."""
        return (await self.of([log_id])).get(log_id)

    async def of(self, log_ids: Sequence[str]) -> dict[str, Lease]:
        """Returns the leases of logs, by log."""
        return await self._database.read(lambda connection: _leases(connection, log_ids))

    async def unreleased(self, node: str) -> list[Lease]:
        """Returns the leases of a node that are not released, expired or not."""
        condition = "node = :node AND expires_at > 0"
        return await self._database.read(lambda connection: _found(connection, condition, {"node": node}))

    async def abandoned(self, silent: float, limit: int = 500) -> list[Lease]:
        """Returns leases that have expired without a release, of nodes without a heartbeat in the last `silent` seconds."""
        beating = "SELECT id FROM nodes WHERE heartbeat_at > {now} - :silent"
        condition = f"expires_at > 0 AND expires_at <= {{now}} AND node NOT IN ({beating}) LIMIT :limit"
        values = {"silent": silent, "limit": limit}
        return await self._database.read(lambda connection: _found(connection, condition, values))

    async def count_by_node(self) -> dict[str, int]:
        """Returns how many leases that are not released each node has."""
        query = "SELECT node, count(*) FROM leases WHERE expires_at > 0 GROUP BY node"
        return await self._database.read(lambda connection: dict(connection.rows(query)))


def insert_lease(connection: Connection, log_id: str, node: str, seconds: float) -> None:
    """Gives a node the lease of a log that is created in this transaction, with the token 1."""
    statement = "INSERT INTO leases (log_id, node, token, expires_at) VALUES (:log_id, :node, 1, {now} + :seconds)"
    connection.execute(statement, {"log_id": log_id, "node": node, "seconds": seconds})


def renew_leases(connection: Connection, node: str, seconds: float) -> dict[str, int]:
    """Extends all leases of a node within a transaction. Returns their tokens by log."""
    statement = "UPDATE leases SET expires_at = {now} + :seconds WHERE node = :node AND expires_at > 0 RETURNING log_id, token"
    return dict(connection.rows(statement, {"node": node, "seconds": seconds}))


def _leases(connection: Connection, log_ids: Sequence[str]) -> dict[str, Lease]:
    return {lease.log_id: lease for lease in _found(connection, "log_id {in_ids}", {"ids": list(log_ids)})}


def _found(connection: Connection, condition: str, values: Parameters) -> list[Lease]:
    return [_lease(row) for row in connection.rows(f"SELECT {_COLUMNS} FROM leases WHERE {condition}", values)]


def _lease(row: Row) -> Lease:
    # SQLite has numbers for truth.
    return Lease(*row)._replace(valid=bool(row[-1]))
