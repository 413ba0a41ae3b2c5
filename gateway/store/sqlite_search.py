"""The index of the search in SQLite: a virtual table of FTS5, which also makes the excerpts."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.store.search_index import Marks, Phrase
from gateway.store.sql import Connection, Row

TABLE = "search_texts"
_CREATE = f'CREATE VIRTUAL TABLE {TABLE} USING fts5(body, tokenize = "unicode61 remove_diacritics 2")'
_FIND = f"""
SELECT t.rowid, s.session, m.position, m.seq, m.body, snippet({TABLE}, 0, :match_begin, :match_end, '…', :words)
FROM {TABLE} t CROSS JOIN search_sessions s ON s.number = t.rowid >> 32
CROSS JOIN sessions x ON x.id = s.session
LEFT JOIN messages m ON m.session_id = s.session AND m.position = (t.rowid & 4294967295) - 1
WHERE {TABLE} MATCH :expression AND t.rowid < :before
  AND (:everybody OR x.owner IS :owner) AND (:agent IS NULL OR x.agent = :agent)
ORDER BY t.rowid DESC LIMIT :limit
"""


def create(connection: Connection) -> bool | None:
    """Create the table if it is missing. Return whether it was; None if this SQLite has no FTS5."""
    if connection.first("SELECT 1 FROM sqlite_master WHERE name = :name", {"name": TABLE}) is None:
        return True if _works(connection, _CREATE) else None
    # Another build of SQLite may have created it.
    return False if _works(connection, f"SELECT rowid FROM {TABLE} LIMIT 1") else None


def insert_rows(connection: Connection, rows: Sequence[tuple[int, str]]) -> None:
    """Add texts with their numbers."""
    values = [{"row_id": row_id, "body": body} for row_id, body in rows]
    connection.execute_many(f"INSERT INTO {TABLE} (rowid, body) VALUES (:row_id, :body)", values)


def delete_rows(connection: Connection, row_ids: Sequence[int]) -> None:
    """Delete texts."""
    connection.execute_many(f"DELETE FROM {TABLE} WHERE rowid = :row_id", [{"row_id": row_id} for row_id in row_ids])


def row_ids_between(connection: Connection, first: int, last: int, limit: int) -> list[int]:
    """Return numbers of texts."""
    query = f"SELECT rowid FROM {TABLE} WHERE rowid BETWEEN :first AND :last LIMIT :limit"
    return connection.values(query, {"first": first, "last": last, "limit": limit})


def find(connection: Connection, phrases: Sequence[Phrase], limit: int, marks: Marks, values: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows that have all phrases, the greatest number first, each with an excerpt."""
    # In the language of FTS5 everything between quotation marks is text.
    expression = " ".join(f'"{words}"{"" if whole else "*"}' for words, whole in phrases)
    match_begin, match_end, words = marks
    of_excerpt = {"match_begin": match_begin, "match_end": match_end, "words": words}
    yield from connection.execute(_FIND, {**values, **of_excerpt, "expression": expression, "limit": limit})


def _works(connection: Connection, statement: str) -> bool:
    try:
        connection.rows(statement)
    except sqlite3.OperationalError as error:
        if "no such module" in str(error):
            return False
        raise
    return True
