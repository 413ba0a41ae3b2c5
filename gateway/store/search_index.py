"""The index of the messages' words: a table of SQLite's module FTS5, which triggers keep, or a GIN index of PostgreSQL.

Both know which messages have all of some words, and not where.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.store.sql import Connection, Dialect

TABLE = "messages_search"
VECTOR = "array_to_tsvector(string_to_array(words, ' '))"
"""What PostgreSQL's index has of a message. It has no parser of its own, and no limit that `words_of` does not keep."""
_MODULE = "fts5"
_INSERT = f"INSERT INTO {TABLE} (rowid, words) VALUES (new.number, new.words);"
_DELETE = f"INSERT INTO {TABLE} ({TABLE}, rowid, words) VALUES ('delete', old.number, old.words);"
_TRIGGERS = {
    "insert": f"AFTER INSERT ON messages WHEN new.words != '' BEGIN {_INSERT} END",
    "update": f"AFTER UPDATE OF number, words ON messages BEGIN {_DELETE} {_INSERT} END",
    "delete": f"AFTER DELETE ON messages WHEN old.words != '' BEGIN {_DELETE} END",
}
_KEPT: dict[Dialect, str] = {
    "sqlite": f"SELECT 1 FROM sqlite_master WHERE name = '{TABLE}_insert'",
    "postgresql": "SELECT 1 WHERE to_regclass('messages_words') IS NOT NULL",
}


def is_kept(connection: Connection) -> bool:
    """Returns whether the index has the words of all messages."""
    return connection.first(_KEPT[connection.dialect]) is not None


def is_prepared(connection: Connection) -> bool:
    """Returns whether the index is kept, or cannot be: this SQLite has no FTS5."""
    return is_kept(connection) == _is_possible(connection)


def prepare(connection: Connection) -> None:
    """Creates the index, in a transaction. An SQLite without FTS5 ends the use of an index that another SQLite has created."""
    if connection.dialect == "postgresql":
        connection.execute(f"CREATE INDEX IF NOT EXISTS messages_words ON messages USING gin (({VECTOR}))")
    elif _is_possible(connection):
        connection.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS {TABLE} USING {_MODULE}("
            "words, content = 'messages', content_rowid = 'number', detail = none, columnsize = 0, tokenize = 'ascii')"
        )
        # What was stored without the module.
        connection.execute(f"INSERT INTO {TABLE} ({TABLE}) VALUES ('rebuild')")
        for event, action in _TRIGGERS.items():
            connection.execute(f"CREATE TRIGGER IF NOT EXISTS {TABLE}_{event} {action}")
    else:
        # Without the module, the table cannot be dropped.
        for event in _TRIGGERS:
            connection.execute(f"DROP TRIGGER IF EXISTS {TABLE}_{event}")


def _is_possible(connection: Connection) -> bool:
    if connection.dialect == "postgresql":
        return True
    query = "SELECT 1 FROM pragma_module_list WHERE name = :module"
    return connection.first(query, {"module": _MODULE}) is not None


def expression(words: Iterable[tuple[str, bool]], dialect: Dialect) -> str:
    """Returns the query of messages that have all of these words. One that is not whole is the beginning of a word."""
    # Words are letters and digits: they have no quotation marks.
    if dialect == "sqlite":
        return " ".join(sorted({f'"{word}"' if whole else f'"{word}"*' for word, whole in words}))
    return " & ".join(sorted({f"'{word}'" if whole else f"'{word}':*" for word, whole in words}))
