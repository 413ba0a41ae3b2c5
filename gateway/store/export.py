"""Writes the rows of a database of any version as JSON lines, and changes nothing."""

from __future__ import annotations

import json
from base64 import b64encode
from contextlib import closing
from typing import Any, BinaryIO

from gateway.errors import ConfigError
from gateway.store.database import Database
from gateway.store.sql import Connection

ROWS = 32
"""Rows that are read from a server at once. A row has events of some megabytes at most."""
_TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite/_%' ESCAPE '/'",
    "postgresql": "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema()",
}


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
    if connection.dialect == "sqlite":
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL TABLE%'"
        virtual = connection.values(query)
    # A virtual table keeps its data in tables whose names begin with its own name.
    ordinary = (name for name in connection.values(_TABLES[connection.dialect]) if name not in virtual)
    return sorted(name for name in ordinary if not name.startswith(tuple(f"{one}_" for one in virtual)))


def _export_table(connection: Connection, name: str, output: BinaryIO) -> int:
    rows = 0
    with closing(_cursor(connection, name)) as cursor:
        columns = [column[0] for column in cursor.description or ()]
        for row in cursor:
            line = {"table": name, "row": {key: _json_value(value) for key, value in zip(columns, row, strict=True)}}
            output.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            rows += 1
    return rows


def _cursor(connection: Connection, table: str) -> Any:
    """Returns a cursor that reads the rows of a table as they are taken."""
    # By the driver: the name, which may be that of another program's table, has words and parameters of no statement.
    query = 'SELECT * FROM "{}"'.format(table.replace('"', '""'))
    if connection.dialect == "sqlite":
        return connection.driver.execute(query)
    # A cursor of the server.
    cursor = connection.driver.cursor("exported")
    cursor.itersize = ROWS
    cursor.execute(query)
    return cursor


def _json_value(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value if value is None or isinstance(value, str | int | float) else str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}
