"""The search in titles and messages: an index of SQLite (sqlite_search.py) or PostgreSQL (postgresql_search.py), which is filled
in the background.

A session has a number in the index, and a row of the index has the number and the position of its message (`_row_id`). What a
session has in the index stays until `remove` deletes it, in parts: deleting a session must not take long.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal

from gateway.store import sqlite_search
from gateway.store.database import Database
from gateway.store.search_index import Phrase, SearchIndex
from gateway.store.sql import Connection

MATCH_BEGIN, MATCH_END, JOINED = "\x02", "\x03", "\x1f"
"""Characters that stand before and after what matches in an excerpt, and one that separates words and is not displayed."""
EXCERPT_WORDS = 20
_FILLING = 0x66696C6C696E67
"""The key of the advisory lock of the node that fills the index."""
REMOVED_ROWS = 100
"""Rows of the index that one transaction deletes at most."""
_POSITIONS = 2**32
_LACKING = """
SELECT id, next_position, behind_last, title FROM (
    SELECT s.id, s.created_at, i.number, coalesce(i.next_position, 0) AS next_position, i.title AS indexed_title,
           coalesce((SELECT max(position) + 1 FROM messages WHERE session_id = s.id), 0) AS behind_last,
           coalesce(m.chosen_title, m.title) AS title
    FROM sessions AS s LEFT JOIN search_sessions AS i ON i.session = s.id LEFT JOIN session_metadata AS m ON m.session_id = s.id
) AS known
WHERE (number IS NULL OR next_position < behind_last OR coalesce(title, '') != coalesce(indexed_title, ''))
"""
_KNOWN = "SELECT number, next_position, title FROM search_sessions WHERE session = :session {for_update}"
SearchKind = Literal["index", "none"]


@dataclass(frozen=True, slots=True)
class NotIndexed:
    """A session that the index lacks something of: messages from `next_position` to before `end`, or the `title` of today."""

    session_id: str
    next_position: int
    end: int
    title: str | None


@dataclass(frozen=True, slots=True)
class SearchRow:
    """A title (without `position` and `body`) or a message that was found. `excerpt` is a part of its text, with the marks above.

    `cursor` continues after it.
    """

    cursor: int
    session_id: str
    position: int | None
    seq: int | None
    body: str | None
    excerpt: str


class SearchRepository:
    """Call `prepare` first; `kind` is how the database can be searched. The index methods are for the kind `index` only."""

    kind: SearchKind | None = None

    def __init__(self, database: Database) -> None:
        self._database = database

    async def prepare(self) -> SearchKind:
        """Creates the index if it is missing, and returns the kind of search. It does not fill the index."""
        kind = await self._database.write(_prepare)
        self.kind = kind
        return kind

    async def not_indexed(self, limit: int, session_ids: Sequence[str] | None = None) -> list[NotIndexed]:
        """Returns sessions that the index lacks something of, oldest first; of these only if some are given."""
        of_these = "" if session_ids is None else "AND id {in_ids}"
        query = f"{_LACKING} {of_these} ORDER BY created_at, id LIMIT :limit"
        values = {"ids": list(session_ids or ()), "limit": limit}
        return await self._database.read(lambda connection: [NotIndexed(*row) for row in connection.rows(query, values)])

    def filling(self) -> AbstractAsyncContextManager[bool]:
        """Returns a context that tells whether the caller may fill the index: of the nodes of a cluster, one may at a time."""
        return self._database.locked(_FILLING)

    async def add(
        self, session_id: str, texts: Sequence[tuple[int, str]], next_position: int, title: str | None, title_text: str | None
    ) -> None:
        """Adds messages by their positions, and the title, to the index. Does nothing if the session was deleted.

        `title_text` is the title as it is searched.
        """
        await self._database.write(lambda connection: _add(connection, session_id, texts, next_position, title, title_text))

    async def deleted(self) -> list[str]:
        """Returns the sessions that the index has something of and that were deleted."""
        query = """
            SELECT session FROM search_sessions AS i WHERE NOT EXISTS (SELECT id FROM sessions WHERE sessions.id = i.session)
        """
        return await self._database.read(lambda connection: connection.values(query))

    async def remove(self, session_id: str) -> None:
        """Removes what the index has of a session that was deleted, in short transactions."""
        while not await self._database.write(lambda connection: _remove_part(connection, session_id)):
            pass

    async def find(
        self, phrases: Sequence[Phrase], owner: str | None, *, everybody: bool, agent: str | None, limit: int, before: int | None
    ) -> list[SearchRow]:
        """Returns what has all phrases, the newest session first and its last message first.

        A phrase is words that stand together, and whether the last one is whole, not only the beginning of a word. Sessions are
        those of the owner, or all with `everybody`. `before` is the cursor of the page before.
        """
        values = {"owner": owner, "everybody": everybody, "agent": agent, "before": 2**63 - 1 if before is None else before}

        def found(connection: Connection) -> list[SearchRow]:
            marks = (MATCH_BEGIN, MATCH_END, EXCERPT_WORDS)
            return [SearchRow(*row) for row in _index(connection).find(connection, phrases, limit, marks, values)]

        return await self._database.read(found)


def _index(connection: Connection) -> SearchIndex:
    """Return the module with the index of a database."""
    if connection.dialect == "sqlite":
        return sqlite_search
    # Only a database of PostgreSQL needs it, and its patterns and statements take 0.3 MB.
    from gateway.store import postgresql_search

    return postgresql_search


def _prepare(connection: Connection) -> SearchKind:
    created = _index(connection).create(connection)
    if created is None:
        return "none"
    if created:
        connection.execute("DELETE FROM search_sessions")
    return "index"


def _row_id(number: int, position: int) -> int:
    """The row of a message in the index. That of a title has the position -1."""
    return number * _POSITIONS + position + 1


def _add(
    connection: Connection,
    session_id: str,
    texts: Sequence[tuple[int, str]],
    next_position: int,
    title: str | None,
    title_text: str | None,
) -> None:
    values = {"session": session_id}
    # The locks, which SQLite does not need, let other nodes neither delete the session nor add the same messages meanwhile.
    if connection.first("SELECT id FROM sessions WHERE id = :session {for_key_share}", values) is None:
        return
    row = connection.first(_KNOWN, values)
    if row is None:
        added = "INSERT INTO search_sessions (session, next_position) VALUES (:session, 0) ON CONFLICT (session) DO NOTHING"
        connection.execute(added, values)
        (row,) = connection.rows(_KNOWN, values)
    number, known_position, known_title = row
    statement = "UPDATE search_sessions SET next_position = :next_position, title = :title WHERE number = :number"
    of_session = {"number": number, "next_position": max(next_position, known_position), "title": title}
    connection.execute(statement, of_session)
    index = _index(connection)
    if title != known_title:
        index.delete_rows(connection, [_row_id(number, -1)])
        index.insert_rows(connection, [(_row_id(number, -1), title_text)] if title_text else [])
    # Not those that another call has added.
    index.insert_rows(connection, [(_row_id(number, at), body) for at, body in texts if at >= known_position])


def _remove_part(connection: Connection, session_id: str) -> bool:
    """Delete some rows of a session. Returns whether there are no more."""
    # The lock waits for what another node adds, which is found then.
    row = connection.first(_KNOWN, {"session": session_id})
    if row is None:
        return True
    number, *_ = row
    first, last = _row_id(number, -1), _row_id(number + 1, -1) - 1
    index = _index(connection)
    found = index.row_ids_between(connection, first, last, REMOVED_ROWS)
    index.delete_rows(connection, found)
    if len(found) < REMOVED_ROWS:
        connection.execute("DELETE FROM search_sessions WHERE number = :number", {"number": number})
        return True
    return False
