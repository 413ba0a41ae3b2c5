"""Queries about the events of logs. One row holds the events first..last (docs/decisions/event-storage.md)."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from gateway.store import schema
from gateway.store.database import Database
from gateway.store.messages import insert_messages
from gateway.store.prepared import prepared_insert
from gateway.store.rows import EventRow, MessageRow

_INSERT = prepared_insert(schema.events, "log_id", "first", "last", "body")


class EventRepository:
    """The numbered events of each log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, row: EventRow, messages: Sequence[MessageRow] = ()) -> None:
        """Stores the events of one row, and the messages of the session that they complete."""

        def transaction(connection: Connection) -> None:
            insert_events(connection, row)
            insert_messages(connection, row.log_id, messages)

        await self._database.write(transaction)

    async def read(self, log_id: str, after: int, rows: int = 16) -> list[tuple[int, bytes]]:
        """Returns up to `rows` rows that hold events after a number: (number of the first event, JSON lines)."""
        table = schema.events
        query = select(table.c.first, table.c.body).where(table.c.log_id == log_id, table.c.last > after)
        query = query.order_by(table.c.first).limit(rows)
        return await self._database.read(lambda connection: [(row.first, row.body) for row in connection.execute(query)])

    async def last_seq(self, log_id: str) -> int:
        """Returns the number of a log's last stored event, 0 if it has none."""
        query = select(func.coalesce(func.max(schema.events.c.last), 0)).where(schema.events.c.log_id == log_id)
        return await self._database.read(lambda connection: int(connection.execute(query).scalar_one()))


def insert_events(connection: Connection, row: EventRow) -> None:
    """Stores the events of one row within a transaction."""
    _INSERT.execute(connection, {"log_id": row.log_id, "first": row.first, "last": row.last, "body": row.body})
