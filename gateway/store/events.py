"""Queries about the events of logs. One row holds the events first..last (docs/decisions/event-storage.md)."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.store.database import Database
from gateway.store.idempotency_keys import insert_keys_of_events
from gateway.store.messages import insert_messages
from gateway.store.partial_reads import rows_up_to
from gateway.store.rows import EventRow, KeyRecord, MessageRow
from gateway.store.sql import Connection, Parameters, insert

_INSERT = insert("events", ("log_id", "first", "last", "body"))
# The rows of a log follow each other: one search in the primary key finds the first, whatever is before it.
_AFTER = """
SELECT first, body FROM events WHERE log_id = :log_id AND last > :after
AND first >= coalesce((SELECT max(first) FROM events WHERE log_id = :log_id AND first <= :next), 0)
"""
_BEFORE = "SELECT first, body FROM events WHERE log_id = :log_id AND first < :before"

READ_BYTES = 2 * 1024 * 1024
"""About how many bytes of events are read at once; a larger row is read whole."""
READ_ROWS = 512


class EventRepository:
    """The numbered events of each log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, row: EventRow, messages: Sequence[MessageRow] = (), keys: Sequence[KeyRecord] = ()) -> None:
        """Stores the events of one row, the messages of the session that they complete, and the idempotency keys of events."""

        def transaction(connection: Connection) -> None:
            insert_events(connection, row)
            insert_messages(connection, row.log_id, messages)
            insert_keys_of_events(connection, keys)

        await self._database.write(transaction)

    async def read(self, log_id: str, after: int, rows: int = READ_ROWS) -> list[tuple[int, bytes]]:
        """Returns up to `rows` rows that hold events after a number: (number of the first event, JSON lines).

        It stops at READ_BYTES, but returns at least one row if there is one.
        """
        values = {"log_id": log_id, "after": after, "next": after + 1}
        return await self._database.read(lambda connection: _bounded(connection, _AFTER, values, rows))

    async def read_before(self, log_id: str, before: int, rows: int = READ_ROWS) -> list[tuple[int, bytes]]:
        """Returns up to `rows` rows that hold events before a number, as `read`, the last row first."""
        values = {"log_id": log_id, "before": before}
        return await self._database.read(lambda connection: _bounded(connection, _BEFORE, values, rows, descending=True))

    async def last_seq(self, log_id: str) -> int:
        """Returns the number of a log's last stored event, 0 if it has none."""
        # Not max(last): the primary key finds the last row, where a maximum reads all rows of the log.
        query, values = "SELECT last FROM events WHERE log_id = :log_id ORDER BY first DESC LIMIT 1", {"log_id": log_id}
        return await self._database.read(lambda connection: int(connection.value(query, values) or 0))


def _bounded(
    connection: Connection, query: str, values: Parameters, rows: int, *, descending: bool = False
) -> list[tuple[int, bytes]]:
    """The first rows of a query, up to READ_BYTES, at least one if there is one."""
    found, left = list[tuple[int, bytes]](), READ_BYTES
    for first, body in rows_up_to(
        connection, query, values, order="first", sized="{size}(body)", size=READ_BYTES, descending=descending, limit=rows
    ):
        found.append((first, body))
        left -= len(body)
        if left <= 0:
            break
    return found


def insert_events(connection: Connection, row: EventRow) -> None:
    """Stores the events of one row within a transaction."""
    connection.execute(_INSERT, {"log_id": row.log_id, "first": row.first, "last": row.last, "body": row.body})
