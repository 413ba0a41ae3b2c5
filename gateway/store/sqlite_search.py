"""The index of the search in SQLite: a virtual table of FTS5, which also makes the excerpts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import OperationalError

from gateway.store.search_index import Marks, Phrase

TABLE = "search_texts"
_CREATE = f'CREATE VIRTUAL TABLE {TABLE} USING fts5(body, tokenize = "unicode61 remove_diacritics 2")'
_PART = text(f"SELECT rowid FROM {TABLE} WHERE rowid BETWEEN :first AND :last LIMIT :limit")
_FIND = text(f"""
SELECT t.rowid AS row_id, snippet({TABLE}, 0, :match_begin, :match_end, '…', :words) AS excerpt, s.session AS session_id,
       m.position AS position, m.seq AS seq, m.body AS body
FROM {TABLE} t CROSS JOIN search_sessions s ON s.number = t.rowid >> 32
CROSS JOIN sessions x ON x.id = s.session
LEFT JOIN messages m ON m.session_id = s.session AND m.position = (t.rowid & 4294967295) - 1
WHERE {TABLE} MATCH :expression AND t.rowid < :before
  AND (:everybody OR x.owner IS :owner) AND (:agent IS NULL OR x.agent = :agent)
ORDER BY t.rowid DESC LIMIT :limit
""")


def create(connection: Connection) -> bool | None:
    """Create the table if it is missing. Return whether it was; None if this SQLite has no FTS5."""
    exists = text("SELECT 1 FROM sqlite_master WHERE name = :name")
    if connection.execute(exists, {"name": TABLE}).first() is None:
        return True if _works(connection, _CREATE) else None
    # Another build of SQLite may have created it.
    return False if _works(connection, f"SELECT rowid FROM {TABLE} LIMIT 1") else None


def insert_rows(connection: Connection, rows: Sequence[tuple[int, str]]) -> None:
    """Add texts with their numbers."""
    if rows:
        connection.exec_driver_sql(f"INSERT INTO {TABLE} (rowid, body) VALUES (?, ?)", list(rows)).close()


def delete_rows(connection: Connection, row_ids: Sequence[int]) -> None:
    """Delete texts."""
    if row_ids:
        connection.exec_driver_sql(f"DELETE FROM {TABLE} WHERE rowid = ?", [(row_id,) for row_id in row_ids]).close()


def row_ids_between(connection: Connection, first: int, last: int, limit: int) -> list[int]:
    """Return numbers of texts."""
    return list(connection.execute(_PART, {"first": first, "last": last, "limit": limit}).scalars())


def find(
    connection: Connection, phrases: Sequence[Phrase], limit: int, marks: Marks, values: Mapping[str, Any]
) -> Iterator[tuple[Row[Any], str]]:
    """Yield the rows that have all phrases, the greatest number first, each with an excerpt."""
    # In the language of FTS5 everything between quotation marks is text.
    expression = " ".join(f'"{words}"{"" if whole else "*"}' for words, whole in phrases)
    match_begin, match_end, words = marks
    of_excerpt = {"match_begin": match_begin, "match_end": match_end, "words": words}
    for row in connection.execute(_FIND, {**values, **of_excerpt, "expression": expression, "limit": limit}):
        yield row, row.excerpt


def _works(connection: Connection, statement: str) -> bool:
    try:
        connection.exec_driver_sql(statement).close()
    except OperationalError as error:
        if "no such module" in str(error.orig):
            return False
        raise
    return True
