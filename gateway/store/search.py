"""The search in titles and messages: an index of SQLite (FTS5) or PostgreSQL (postgresql_search.py), which is filled in the
background.

A session has a number in the index, and a row of the index has the number and the position of its message (`_row_id`). What a
session has in the index stays until `remove` deletes it, in parts: deleting a session must not take long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import (
    Connection,
    Row,
    delete,
    func,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.exc import OperationalError

from gateway.store import postgresql_search, schema
from gateway.store.database import Database

MATCH_BEGIN, MATCH_END, JOINED = "\x02", "\x03", "\x1f"
"""Characters that stand before and after what matches in an excerpt, and one that separates words and is not displayed."""
EXCERPT_WORDS = 20
_FILLING = 0x66696C6C696E67
"""The key of the advisory lock of the node that fills the index."""
REMOVED_ROWS = 100
"""Rows of the index that one transaction deletes at most."""
_TABLE = "search_texts"
_CREATE = f'CREATE VIRTUAL TABLE {_TABLE} USING fts5(body, tokenize = "unicode61 remove_diacritics 2")'
_POSITIONS = 2**32
_FIND = f"""
SELECT t.rowid AS row_id, snippet({_TABLE}, 0, char(2), char(3), '…', {EXCERPT_WORDS}) AS excerpt, s.session AS session_id,
       m.position AS position, m.seq AS seq, m.body AS body
FROM {_TABLE} t CROSS JOIN search_sessions s ON s.number = t.rowid >> 32
CROSS JOIN sessions x ON x.id = s.session
LEFT JOIN messages m ON m.session_id = s.session AND m.position = (t.rowid & 4294967295) - 1
WHERE {_TABLE} MATCH :expression AND t.rowid < :before
  AND (:everybody OR x.owner IS :owner) AND (:agent IS NULL OR x.agent = :agent)
ORDER BY t.rowid DESC LIMIT :limit
"""

_ADD_SESSION = text("INSERT INTO search_sessions (session, next_position) VALUES (:session, 0) ON CONFLICT (session) DO NOTHING")

Phrase = tuple[str, bool]
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
        table, indexed, known, messages = schema.sessions, schema.search_sessions, schema.session_metadata, schema.messages
        title = func.coalesce(known.c.chosen_title, known.c.title)
        count = func.coalesce(
            select(func.max(messages.c.position) + 1).where(messages.c.session_id == table.c.id).scalar_subquery(), 0
        )
        next_position = func.coalesce(indexed.c.next_position, 0)
        lacking = or_(
            indexed.c.number.is_(None), next_position < count, func.coalesce(title, "") != func.coalesce(indexed.c.title, "")
        )
        query = (
            select(table.c.id, next_position.label("next_position"), count.label("end"), title.label("title"))
            .outerjoin_from(table, indexed, indexed.c.session == table.c.id)
            .outerjoin(known, known.c.session_id == table.c.id)
            .where(lacking)
            .order_by(table.c.created_at, table.c.id)
            .limit(limit)
        )
        if session_ids is not None:
            query = query.where(table.c.id.in_(session_ids))
        return await self._database.read(lambda connection: [NotIndexed(*row) for row in connection.execute(query)])

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
        indexed, sessions = schema.search_sessions, schema.sessions
        query = select(indexed.c.session).where(~select(sessions.c.id).where(sessions.c.id == indexed.c.session).exists())
        return await self._database.read(lambda connection: list(connection.execute(query).scalars()))

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
            rows: Iterable[tuple[Row[Any], str]]
            if connection.dialect.name == "sqlite":
                # In the language of FTS5 everything between quotation marks is text.
                expression = " ".join(f'"{words}"{"" if whole else "*"}' for words, whole in phrases)
                by_fts5 = connection.execute(text(_FIND), {**values, "expression": expression, "limit": limit})
                rows = ((row, row.excerpt) for row in by_fts5)
            else:
                rows = postgresql_search.find(connection, phrases, limit, (MATCH_BEGIN, MATCH_END, EXCERPT_WORDS), values)
            return [SearchRow(row.row_id, row.session_id, row.position, row.seq, row.body, excerpt) for row, excerpt in rows]

        return await self._database.read(found)


def _prepare(connection: Connection) -> SearchKind:
    if connection.dialect.name != "sqlite":
        if postgresql_search.create(connection):
            connection.execute(delete(schema.search_sessions))
        return "index"
    exists = text("SELECT 1 FROM sqlite_master WHERE name = :name")
    if connection.execute(exists, {"name": _TABLE}).first() is not None:
        # The module may be missing in another build of SQLite.
        return "index" if _works(connection, f"SELECT rowid FROM {_TABLE} LIMIT 1") else "none"
    if not _works(connection, _CREATE):
        return "none"
    connection.execute(delete(schema.search_sessions))
    return "index"


def _works(connection: Connection, statement: str) -> bool:
    try:
        connection.exec_driver_sql(statement).close()
    except OperationalError as error:
        if "no such module" in str(error.orig):
            return False
        raise
    return True


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
    sessions, indexed = schema.sessions, schema.search_sessions
    # The locks, which SQLite does not need, let other nodes neither delete the session nor add the same messages meanwhile.
    existing = select(sessions.c.id).where(sessions.c.id == session_id).with_for_update(read=True, key_share=True)
    if connection.execute(existing).first() is None:
        return
    known = select(indexed.c.number, indexed.c.next_position, indexed.c.title).where(indexed.c.session == session_id)
    row = connection.execute(known.with_for_update()).first()
    if row is None:
        connection.execute(_ADD_SESSION, {"session": session_id}).close()
        row = connection.execute(known.with_for_update()).one()
    of_session = {"next_position": max(next_position, row.next_position), "title": title}
    connection.execute(update(indexed).where(indexed.c.number == row.number).values(**of_session))
    if title != row.title:
        _delete_rows(connection, [_row_id(row.number, -1)])
        _insert_rows(connection, [(_row_id(row.number, -1), title_text)] if title_text else [])
    # Not those that another call has added.
    _insert_rows(connection, [(_row_id(row.number, at), body) for at, body in texts if at >= row.next_position])


def _insert_rows(connection: Connection, rows: Sequence[tuple[int, str]]) -> None:
    if connection.dialect.name != "sqlite":
        postgresql_search.insert_rows(connection, rows)
    elif rows:
        connection.exec_driver_sql(f"INSERT INTO {_TABLE} (rowid, body) VALUES (?, ?)", list(rows)).close()


def _delete_rows(connection: Connection, row_ids: Sequence[int]) -> None:
    if connection.dialect.name != "sqlite":
        postgresql_search.delete_rows(connection, row_ids)
    elif row_ids:
        connection.exec_driver_sql(f"DELETE FROM {_TABLE} WHERE rowid = ?", [(row_id,) for row_id in row_ids]).close()


def _remove_part(connection: Connection, session_id: str) -> bool:
    """Delete some rows of a session. Returns whether there are no more."""
    indexed = schema.search_sessions
    # The lock waits for what another node adds, which is found then.
    number = connection.execute(select(indexed.c.number).where(indexed.c.session == session_id).with_for_update()).scalar()
    if number is None:
        return True
    first, last = _row_id(number, -1), _row_id(number + 1, -1) - 1
    if connection.dialect.name != "sqlite":
        found = postgresql_search.row_ids_between(connection, first, last, REMOVED_ROWS)
    else:
        part = text(f"SELECT rowid FROM {_TABLE} WHERE rowid BETWEEN :first AND :last LIMIT {REMOVED_ROWS}")
        found = list(connection.execute(part, {"first": first, "last": last}).scalars())
    _delete_rows(connection, found)
    if len(found) < REMOVED_ROWS:
        connection.execute(delete(indexed).where(indexed.c.number == number))
        return True
    return False
