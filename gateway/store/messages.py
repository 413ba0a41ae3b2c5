"""Queries about the messages of sessions."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gateway.store.database import Database
from gateway.store.partial_reads import rows_up_to
from gateway.store.rows import MessageRow
from gateway.store.sql import Connection
from gateway.store.words import words_of

NEXT_POSITION = "(SELECT coalesce(max(position) + 1, 0) FROM messages WHERE session_id = :session_id)"
"""How many messages a session has, as a part of a statement: their positions are 0 to before that number."""
# Behind the place of the title: search.py. 0 for a session that does not exist, which the foreign key refuses.
_NUMBER = "coalesce(((SELECT number FROM histories WHERE session_id = :session_id) << 32) + 1 + position, 0)"
_INSERT = f"""
INSERT INTO messages (number, session_id, position, body, seq, words)
SELECT {_NUMBER}, :session_id, position, :body, CAST(:seq AS BIGINT), :words FROM (SELECT {NEXT_POSITION} AS position) AS new
"""
# All of them or none: those of a session that was deleted are deleted in parts.
_COPY = f"""
INSERT INTO messages (number, session_id, position, body, words)
SELECT {_NUMBER}, :session_id, position, body, words FROM messages
WHERE session_id = (SELECT id FROM sessions WHERE id = :origin) AND position < :count
"""

NOT_KEPT = {"x-portico": {"kept": False}}
"""The mark of a message that is no part of the conversation, because the agent's CLI has refused its prompt."""
PAGE_CHARACTERS = 1024 * 1024
"""About how much JSON one page of messages holds; a larger single message is a page of its own."""
READ_ROWS = 4
"""Messages that are read at once where nothing bounds their size."""


class MessageRepository:
    """The history of each session, in order."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, session_id: str, rows: Sequence[MessageRow]) -> None:
        """Stores messages at the end of a session's history."""
        await self._database.write(lambda connection: insert_messages(connection, session_id, rows))

    async def count(self, session_id: str) -> int:
        """Returns the number of messages of a session. Their positions are 0 to before that number."""
        return await self._database.read(lambda connection: _count(connection, session_id))

    async def count_until(self, session_id: str, seq: int) -> int:
        """Returns the number of messages of a session that are complete with the event of this number, which are its first."""
        query = """
            SELECT coalesce(max(position) + 1, 0) FROM messages
            WHERE session_id = :session_id AND (seq IS NULL OR seq <= :seq)
        """
        values = {"session_id": session_id, "seq": seq}
        return await self._database.read(lambda connection: int(connection.value(query, values)))

    async def count_seeds(self, session_id: str) -> int:
        """Returns how many messages a session was created with: those before the first one that has a number."""
        first = "SELECT position FROM messages WHERE session_id = :session_id AND seq IS NOT NULL ORDER BY position LIMIT 1"

        def read(connection: Connection) -> int:
            found = connection.value(first, {"session_id": session_id})
            return int(found) if found is not None else _count(connection, session_id)

        return await self._database.read(read)

    async def page(self, session_id: str, first: int, end: int) -> list[str]:
        """Returns messages as JSON texts, from the position `first` to before `end`: PAGE_CHARACTERS of them, at least one."""
        rows = await self._database.read(lambda connection: _page(connection, session_id, first, end=end))
        return [row.body for _, row in rows]

    async def numbered(self, session_id: str, first: int, limit: int) -> list[tuple[int, MessageRow]]:
        """Returns up to `limit` messages with their positions, from `first` on: PAGE_CHARACTERS of them, at least one."""
        return await self._database.read(lambda connection: _page(connection, session_id, first, limit=limit))

    async def first_of_newest(self, session_id: str, first: int, end: int, size: int) -> int:
        """Returns the position, `first` at least, from which on the messages before `end` have at most `size` characters.

        The last message counts in any case.
        """
        query = """
            SELECT position, length(body) AS characters FROM messages
            WHERE session_id = :session_id AND position >= :first AND position < :end
        """
        values = {"session_id": session_id, "first": first, "end": end}

        def read(connection: Connection) -> int:
            found, left = end, size
            rows = rows_up_to(connection, query, values, order="position", sized="characters", size=size + 1, descending=True)
            for position, characters in rows:
                left -= characters
                if left < 0 and found < end:
                    break
                found = position
            return found

        return await self._database.read(read)

    async def system_messages(self, session_id: str, before: int) -> list[str]:
        """Returns the system messages before a position as JSON texts, in order."""
        # Messages are stored with their role first.
        query = """
            SELECT body FROM messages WHERE session_id = :session_id AND position < :before AND body LIKE '{"role":"system"%'
            ORDER BY position
        """
        values = {"session_id": session_id, "before": before}
        return await self._database.read(lambda connection: connection.values(query, values))

    async def rows_from(self, session_id: str, seq: int, after: int, rows: int = READ_ROWS) -> list[tuple[int, MessageRow]]:
        """Returns up to `rows` messages with numbers from `seq` on, behind the position `after`, with their positions."""
        query = """
            SELECT position, body, seq FROM messages WHERE session_id = :session_id AND seq >= :seq AND position > :after
            ORDER BY position LIMIT :rows
        """
        values = {"session_id": session_id, "seq": seq, "after": after, "rows": rows}
        return await self._database.read(
            lambda connection: [(position, MessageRow(*row)) for position, *row in connection.execute(query, values)]
        )

    async def rows(self, session_id: str) -> list[MessageRow]:
        """Returns a session's whole history with the numbers of its messages, in order."""
        query, values = "SELECT body, seq FROM messages WHERE session_id = :id ORDER BY position", {"id": session_id}
        return await self._database.read(lambda connection: [MessageRow(*row) for row in connection.execute(query, values)])


def _count(connection: Connection, session_id: str) -> int:
    return int(connection.value(f"SELECT {NEXT_POSITION}", {"session_id": session_id}))


def _page(
    connection: Connection, session_id: str, first: int, *, end: int | None = None, limit: int | None = None
) -> list[tuple[int, MessageRow]]:
    """Returns messages with their positions, from `first` on: PAGE_CHARACTERS of them, at least one."""
    query = "SELECT position, body, seq FROM messages WHERE session_id = :session_id AND position >= :first"
    if end is not None:
        query += " AND position < :end"
    values = {"session_id": session_id, "first": first, "end": end}
    found, size = list[tuple[int, MessageRow]](), 0
    for position, body, seq in rows_up_to(
        connection, query, values, order="position", sized="{size}(body)", size=PAGE_CHARACTERS, limit=limit
    ):
        found.append((position, MessageRow(body, seq)))
        size += len(body)
        if size >= PAGE_CHARACTERS:
            break
    return found


def mark_not_kept(connection: Connection, session_id: str, run_id: str) -> None:
    """Marks the messages of a run as no part of the conversation, within a transaction."""
    query = """
        SELECT position, body FROM messages
        WHERE session_id = :session_id AND seq >= (SELECT first_seq FROM runs WHERE id = :run_id)
    """
    for position, body in list(connection.execute(query, {"session_id": session_id, "run_id": run_id})):
        marked = json.dumps({**json.loads(body), **NOT_KEPT}, ensure_ascii=False)
        values = {"session_id": session_id, "position": position, "body": marked}
        connection.execute("UPDATE messages SET body = :body WHERE session_id = :session_id AND position = :position", values)


def insert_messages(connection: Connection, session_id: str, rows: Sequence[MessageRow]) -> None:
    """Appends messages within a transaction."""
    for row in rows:
        values = {"session_id": session_id, "body": row.body, "seq": row.seq, "words": words_of(row.text)}
        connection.execute(_INSERT, values)


def copy_messages(connection: Connection, session_id: str, origin: str, count: int) -> None:
    """Copies the first `count` messages of another session into a new one within a transaction, without their numbers."""
    connection.execute(_COPY, {"session_id": session_id, "origin": origin, "count": count})
