"""Queries about idempotency keys."""

from __future__ import annotations

import time
from dataclasses import asdict

from sqlalchemy import Connection, bindparam, delete, select, update
from sqlalchemy.exc import IntegrityError

from gateway.errors import Conflict
from gateway.store import schema
from gateway.store.database import Database
from gateway.store.deletion import delete_in_parts
from gateway.store.prepared import prepared_insert
from gateway.store.rows import EXECUTION_PREFIX, KeyRecord

_INSERT = prepared_insert(schema.idempotency_keys, "key", "digest", "log_id", "first_seq", "created_at")


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
        table = schema.idempotency_keys.c
        query = select(table.key, table.digest, table.log_id, table.first_seq).where(table.key == key)
        row = await self._database.read(lambda connection: connection.execute(query).mappings().first())
        return KeyRecord(**row) if row else None

    async def add(self, record: KeyRecord) -> None:
        """Stores a key. Its time is now. Raises KeyStored if it is stored already."""
        await self._database.write(lambda connection: insert_key(connection, record))

    async def update(self, key: str, first_seq: int) -> None:
        """Sets the number of the first event of what was started under a key."""
        statement = update(schema.idempotency_keys).where(schema.idempotency_keys.c.key == key).values(first_seq=first_seq)
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def remove(self, key: str) -> None:
        """Deletes a key: what it was stored for has not been started."""
        statement = delete(schema.idempotency_keys).where(schema.idempotency_keys.c.key == key)
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def delete_before(self, created: float) -> None:
        """Deletes the keys of sessions that were stored before a time (seconds since the epoch); those of executions stay."""
        table = schema.idempotency_keys
        of_executions = table.c.log_id.startswith(EXECUTION_PREFIX, autoescape=True)
        query = (
            select(table.c.key.label("of_key")).where(table.c.created_at < created, ~of_executions).order_by(table.c.created_at)
        )
        await delete_in_parts(self._database, query, delete(table).where(table.c.key == bindparam("of_key")))


def insert_key(connection: Connection, record: KeyRecord) -> None:
    """Stores a key within a transaction. Raises KeyStored if it is stored already."""
    try:
        _INSERT.execute(connection, {**asdict(record), "created_at": time.time()}, deferred=False)
    except IntegrityError as error:
        # It may be that of a statement before, which was deferred.
        if schema.idempotency_keys.name not in str(error.orig):
            raise
        raise KeyStored from error
