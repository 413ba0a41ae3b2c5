"""Queries about idempotency keys."""

from __future__ import annotations

import time
from collections.abc import Iterable
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

    async def delete_before(self, created: float) -> None:
        """Deletes the keys of sessions that were stored before a time (seconds since the epoch); those of executions stay."""
        query = f"SELECT key FROM idempotency_keys WHERE created_at < :created AND NOT ({OF_EXECUTION}) ORDER BY created_at"
        statement = "DELETE FROM idempotency_keys WHERE key = :key"
        await delete_in_parts(self._database, query, ["key"], statement, {"created": created})


def insert_key(connection: Connection, record: KeyRecord) -> None:
    """Stores a key within a transaction. Raises KeyStored if it is stored already."""
    if not _inserted(connection, record):
        raise KeyStored


def insert_keys_of_events(connection: Connection, records: Iterable[KeyRecord]) -> None:
    """Stores keys of events within a transaction. One that is stored already stays: the agent has the message of the event."""
    for record in records:
        _inserted(connection, record)


def _inserted(connection: Connection, record: KeyRecord) -> bool:
    values = {**asdict(record), "created_at": time.time()}
    return connection.first(f"{_INSERT} ON CONFLICT (key) DO NOTHING RETURNING 1", values) is not None
