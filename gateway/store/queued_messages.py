"""Queries about messages that wait for their turns in sessions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gateway.errors import NotFound
from gateway.store.database import Database
from gateway.store.rows import QueuedRow, SettingsRecord
from gateway.store.sql import Connection, insert

_COLUMNS = ("id", "message", "created_at", "config", "secrets", "key", "digest")
_OF_SESSION = f"SELECT {', '.join(_COLUMNS)} FROM queued_messages WHERE session_id = :session_id ORDER BY position"
_SESSION = "SELECT 1 FROM sessions WHERE id = :session_id"
_LAST = "SELECT coalesce(max(position), 0) FROM queued_messages WHERE session_id = :session_id"
_DELETE = "DELETE FROM queued_messages WHERE id = :id"
_GO_ON = "UPDATE sessions SET queue_stopped = NULL WHERE id = :session_id"
_NOTHING_STOPPED = f"{_GO_ON} AND NOT EXISTS (SELECT 1 FROM queued_messages WHERE session_id = :session_id)"
_COUNTS = "SELECT session_id, count(*) FROM queued_messages WHERE session_id {in_ids} GROUP BY session_id"
_TO_BEGIN = """
SELECT id FROM sessions WHERE queue_stopped IS NULL
AND id IN (SELECT session_id FROM queued_messages)
AND NOT EXISTS (SELECT 1 FROM runs WHERE log_id = sessions.id AND state != 'ended')
"""
_LEASED = "AND NOT EXISTS (SELECT 1 FROM leases WHERE log_id = sessions.id AND expires_at > 0)"


class QueuedMessageRepository:
    """The queue of each session. The start of a run deletes its message (runs.py)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, session_id: str) -> list[QueuedRow]:
        """Returns the queued messages of a session, in order."""
        values = {"session_id": session_id}
        return await self._database.read(lambda connection: [_row(row) for row in connection.execute(_OF_SESSION, values)])

    async def add(self, session_id: str, row: QueuedRow, *, go_on: bool = False) -> None:
        """Stores a message behind the others of its session; with `go_on` also that the queue is not stopped any more.

        Raises NotFound if the session was deleted meanwhile.
        """
        settings = row.settings
        values: dict[str, Any] = {
            "id": row.id,
            "session_id": session_id,
            "message": row.message,
            "config": None if settings is None else json.dumps(settings.config),
            "secrets": None if settings is None else settings.secrets,
            "key": row.key,
            "digest": row.digest,
            "created_at": row.created_at,
        }

        def transaction(connection: Connection) -> None:
            if connection.first(_SESSION, values) is None:
                raise NotFound(f"session {session_id!r} was deleted")
            values["position"] = connection.value(_LAST, values) + 1
            connection.execute(insert("queued_messages", sorted(values)), values)
            if go_on:
                connection.execute(_GO_ON, values)

        await self._database.write(transaction)

    async def update(self, message_id: str, message: str) -> None:
        """Replaces a message by another one (JSON), at the same place."""
        statement, values = "UPDATE queued_messages SET message = :message WHERE id = :id", {"id": message_id, "message": message}
        await self._database.write(lambda connection: connection.execute(statement, values))

    async def reorder(self, message_ids: Sequence[str]) -> None:
        """Sets the order of all messages of a session."""
        statement = "UPDATE queued_messages SET position = :position WHERE id = :id"
        rows = [{"id": message_id, "position": n} for n, message_id in enumerate(message_ids, 1)]
        await self._database.write(lambda connection: connection.execute_many(statement, rows))

    async def remove(self, session_id: str, message_id: str) -> None:
        """Deletes a message. A queue without messages is not stopped."""
        values = {"session_id": session_id, "id": message_id}

        def transaction(connection: Connection) -> None:
            connection.execute(_DELETE, values)
            connection.execute(_NOTHING_STOPPED, values)

        await self._database.write(transaction)

    async def to_begin(self, *, without_lease: bool = False) -> list[str]:
        """Returns the sessions whose first queued message can begin: the queue is not stopped, and all runs have ended.

        With `without_lease` only those that no node of a cluster has the lease of.
        """
        query = _TO_BEGIN + (_LEASED if without_lease else "")
        return await self._database.read(lambda connection: connection.values(query))


def delete_queued(connection: Connection, message_id: str) -> None:
    """Deletes a message, within the transaction in which its run starts."""
    connection.execute(_DELETE, {"id": message_id})


def queued_counts(connection: Connection, session_ids: Sequence[str]) -> dict[str, int]:
    """Returns how many messages wait in these sessions. Sessions without any are omitted."""
    return {session_id: count for session_id, count in connection.execute(_COUNTS, {"ids": list(session_ids)})}


def _row(row: Sequence[Any]) -> QueuedRow:
    message_id, message, created_at, config, secrets, key, digest = row
    settings = None if config is None else SettingsRecord(json.loads(config), secrets)
    return QueuedRow(message_id, message, created_at, settings, key, digest)
