"""Queries about the events of logs. One row holds the events first..last (docs/decisions/event-storage.md)."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, Select, func, select, union

from gateway.store import schema
from gateway.store.database import Database
from gateway.store.messages import insert_messages
from gateway.store.partial_reads import rows_up_to
from gateway.store.prepared import prepared_insert
from gateway.store.rows import EventRow, MessageRow

_INSERT = prepared_insert(schema.events, "log_id", "first", "last", "body")

READ_BYTES = 2 * 1024 * 1024
"""About how many bytes of events are read at once; a larger row is read whole."""
READ_ROWS = 512


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

    async def read(self, log_id: str, after: int, rows: int = READ_ROWS) -> list[tuple[int, bytes]]:
        """Returns up to `rows` rows that hold events after a number: (number of the first event, JSON lines).

        It stops at READ_BYTES, but returns at least one row if there is one.
        """
        table = schema.events
        # The rows of a log follow each other: one search in the primary key finds the first, whatever is before it.
        holds_next = select(func.max(table.c.first)).where(table.c.log_id == log_id, table.c.first <= after + 1).scalar_subquery()
        query = select(table.c.first, table.c.body).where(table.c.log_id == log_id, table.c.last > after)
        query = query.where(table.c.first >= func.coalesce(holds_next, 0)).limit(rows)
        return await self._database.read(lambda connection: _bounded(connection, query))

    async def read_before(self, log_id: str, before: int, rows: int = READ_ROWS) -> list[tuple[int, bytes]]:
        """Returns up to `rows` rows that hold events before a number, as `read`, the last row first."""
        table = schema.events
        query = select(table.c.first, table.c.body).where(table.c.log_id == log_id, table.c.first < before)
        query = query.limit(rows)
        return await self._database.read(lambda connection: _bounded(connection, query, descending=True))

    async def last_seq(self, log_id: str) -> int:
        """Returns the number of a log's last stored event, 0 if it has none."""
        table = schema.events
        # Not max(last): the primary key finds the last row, where a maximum reads all rows of the log.
        query = select(table.c.last).where(table.c.log_id == log_id).order_by(table.c.first.desc()).limit(1)
        return await self._database.read(lambda connection: int(connection.execute(query).scalar() or 0))

    async def last_of(self, log_ids: Sequence[str]) -> dict[str, int]:
        """Returns the number of the last stored event of each of these logs, 0 if it has none. Deleted logs are omitted."""
        events, sessions, runs = schema.events, schema.sessions, schema.runs
        of_sessions = select(sessions.c.id.label("id")).where(sessions.c.id.in_(log_ids))
        known = union(of_sessions, select(runs.c.log_id).where(runs.c.log_id.in_(log_ids))).subquery()
        last = select(events.c.last).where(events.c.log_id == known.c.id).order_by(events.c.first.desc()).limit(1)
        query = select(known.c.id, last.scalar_subquery())
        return await self._database.read(lambda connection: {row[0]: row[1] or 0 for row in connection.execute(query)})


def _bounded(connection: Connection, query: Select[tuple[int, bytes]], *, descending: bool = False) -> list[tuple[int, bytes]]:
    """The first rows of a query, up to READ_BYTES, at least one if there is one."""
    found, left, table = list[tuple[int, bytes]](), READ_BYTES, schema.events
    for row in rows_up_to(connection, query, table.c.first, table.c.body, READ_BYTES, descending=descending):
        found.append((row.first, row.body))
        left -= len(row.body)
        if left <= 0:
            break
    return found


def insert_events(connection: Connection, row: EventRow) -> None:
    """Stores the events of one row within a transaction."""
    _INSERT.execute(connection, {"log_id": row.log_id, "first": row.first, "last": row.last, "body": row.body})
