"""Queries about idempotency keys."""

from __future__ import annotations

import time
from dataclasses import asdict

from gateway.errors import Conflict
from gateway.store.database import Database
from gateway.store.deletion import delete_in_parts
from gateway.store.rows import EXECUTION_PREFIX, KeyRecord
from gateway.store.sql import Connection, columns, insert, like

OF_EXECUTION = f"log_id LIKE '{like(EXECUTION_PREFIX)}%' ESCAPE '/'"
"""The condition that a row is of an execution's log."""
_INSERT = insert("idempotency_keys", ("key", "digest", "log_id", "first_seq", "created_at"))


class KeyStored(Conflict):
    """Another request has stored the same idempotency key meanwhile. The write has changed nothing."""

    def __init__(self) -> None:
        super().__init__("a request with this idempotency key began at the same moment; send it again for the same answer")


class IdempotencyKeyRepository:
    """What was started under which (hashed) idempotency key."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, key: str) -> KeyRecord | None:
        """Returns what was started under a (hashed) key."""
        query = f"SELECT {columns(KeyRecord)} FROM idempotency_keys WHERE key = :key"
        row = await self._database.read(lambda connection: connection.first(query, {"key": key}))
        return KeyRecord(*row) if row else None

    async def add(self, record: KeyRecord) -> None:
        """Stores a key. Its time is now. Raises KeyStored if it is stored already."""
        await self._database.write(lambda connection: insert_key(connection, record))

    async def update(self, key: str, first_seq: int) -> None:
        """Sets the number of the first event of what was started under a key."""
        statement = "UPDATE idempotency_keys SET first_seq = :first_seq WHERE key = :key"
        values = {"key": key, "first_seq": first_seq}
        await self._database.write(lambda connection: connection.execute(statement, values))

    async def remove(self, key: str) -> None:
        """Deletes a key: what it was stored for has not been started."""
        statement = "DELETE FROM idempotency_keys WHERE key = :key"
        await self._database.write(lambda connection: connection.execute(statement, {"key": key}))

    async def delete_before(self, created: float) -> None:
        """Deletes the keys of sessions that were stored before a time (seconds since the epoch); those of executions stay."""
        query = f"SELECT key FROM idempotency_keys WHERE created_at < :created AND NOT ({OF_EXECUTION}) ORDER BY created_at"
        statement = "DELETE FROM idempotency_keys WHERE key = :key"
        await delete_in_parts(self._database, query, ["key"], statement, {"created": created})


def insert_key(connection: Connection, record: KeyRecord) -> None:
    """Stores a key within a transaction. Raises KeyStored if it is stored already."""
    values = {**asdict(record), "created_at": time.time()}
    if connection.first(f"{_INSERT} ON CONFLICT (key) DO NOTHING RETURNING 1", values) is None:
        raise KeyStored
