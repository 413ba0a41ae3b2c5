"""The tables (schema.sql), their version, and what a database has of them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from gateway.store.sql import Connection, translated

VERSION = 1
"""The version of the tables. The program uses a database of this version only."""
UNFINISHED_COPY = 1_000_000_000
"""The version of a database to which another is being copied."""
OF_RUNNING_NODES = ("nodes", "leases", "sign_in_codes", "turn_slots")
"""Tables whose rows mean nothing without the processes that have stored them."""
_COMMENT = re.compile("--.*")


class Column(NamedTuple):
    """A column of a table. `key` is its place in the primary key, from 1 on; 0 if it is not in it. `large` is text or bytes."""

    name: str
    key: int
    large: bool


@cache
def statements() -> Sequence[str]:
    """Returns the statements that create the tables, in order. They have no semicolon but at their ends."""
    text = files("gateway.store").joinpath("schema.sql").read_text(encoding="utf-8")
    return [statement.strip() for statement in _COMMENT.sub("", text).split(";") if statement.strip()]


@cache
def tables() -> Mapping[str, Sequence[Column]]:
    """Returns the columns of each table, in the order of schema.sql."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in statements():
            connection.execute(translated(statement, "sqlite"))
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid")]
        query = "SELECT name, pk, type IN ('TEXT', 'BLOB') FROM pragma_table_info(?)"
        return {name: [Column(*found) for found in connection.execute(query, (name,))] for name in names}


def create_tables(connection: Connection) -> None:
    """Creates the tables in a database without them, within a transaction."""
    for statement in statements():
        connection.execute(statement)
    connection.execute("INSERT INTO store_version (version) VALUES (:version)", {"version": VERSION})


def found_tables(connection: Connection) -> dict[str, list[str]]:
    """Returns the names of the tables and views of a database, whatever it is, with those of their columns.

    In SQLite without virtual tables, whose module may be missing, and other views, which may refer to what is not there.
    """
    found = dict[str, list[str]]()
    for table, column in connection.rows(_FOUND[connection.dialect], {"names": list(tables())}):
        found.setdefault(table, []).append(column)
    return found


def lacking_columns(found: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the columns that a database with these tables lacks, as TABLE.COLUMN.

    Until the first release, the tables change and keep their version.
    """
    return [
        f"{name}.{column.name}" for name, known in tables().items() for column in known if column.name not in found.get(name, ())
    ]


_FOUND = {
    "sqlite": """
        SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c
        WHERE (m.type = 'table' OR (m.type = 'view' AND m.name {in_names})) AND m.sql NOT LIKE 'CREATE VIRTUAL TABLE%'
        ORDER BY m.name, c.cid
    """,
    # Not information_schema, which lacks what the user has no rights for.
    "postgresql": """
        SELECT c.relname::text, a.attname::text FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
        WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
        AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND a.attnum > 0 AND NOT a.attisdropped ORDER BY c.relname, a.attnum
    """,
}
