"""Writes the rows of a database of any version as JSON lines, and changes nothing."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, BinaryIO

from sqlalchemy import ColumnClause, Connection, column, inspect, select, table, text

from gateway.errors import ConfigError
from gateway.store.database import Database

ROWS = 32
"""Rows that are read from a server at once. A row has events of some megabytes at most."""


async def export_store(url: str, output: BinaryIO) -> dict[str, int]:
    """Writes a line for each row of each table, `{"table": NAME, "row": {COLUMN: VALUE}}`. Returns the number of rows by table.

    Raises ConfigError if the database or the output cannot be used.
    """

    def export(connection: Connection) -> dict[str, int]:
        try:
            found = {name: _export_table(connection, name, output) for name in _tables(connection)}
            output.flush()
        except OSError as error:
            raise ConfigError(f"the rows cannot be written: {error.strerror}") from None
        return found

    return await Database.read_only(url, export)


def _tables(connection: Connection) -> list[str]:
    """Returns the names of all tables without those of the index of the search on SQLite: it repeats what messages have."""
    virtual = list[str]()
    if connection.dialect.name == "sqlite":
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL TABLE%'"
        virtual = [*connection.execute(text(query)).scalars()]
    # A virtual table keeps its data in tables whose names begin with its own name.
    ordinary = (name for name in inspect(connection).get_table_names() if name not in virtual)
    return sorted(name for name in ordinary if not name.startswith(tuple(f"{one}_" for one in virtual)))


def _export_table(connection: Connection, name: str, output: BinaryIO) -> int:
    rows = 0
    for row in _rows(connection, name):
        line = {"table": name, "row": {key: _json_value(value) for key, value in row.items()}}
        output.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        rows += 1
    return rows


def _rows(connection: Connection, name: str) -> Iterator[dict[str, Any]]:
    # Without the types of columns: values as they are stored.
    columns: list[ColumnClause[Any]] = [column(found["name"]) for found in inspect(connection).get_columns(name)]
    query = select(*columns).select_from(table(name))
    with connection.execute(query, execution_options={"yield_per": ROWS}) as found:
        for row in found.mappings():
            yield dict(row)


def _json_value(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value if value is None or isinstance(value, str | int | float) else str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}
