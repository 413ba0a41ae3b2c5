"""Copies a session with all that belongs to it from one database to another."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Connection, Table, insert, select

from gateway.store import schema
from gateway.store.database import Database

_TABLES: list[tuple[Table, Column[Any]]] = [
    (schema.sessions, schema.sessions.c.id),
    *((table, table.c[name]) for table in schema.metadata.sorted_tables for name in ("session_id", "log_id") if name in table.c),
]
"""The tables with rows of sessions, each with the column of the session's id."""

_Rows = list[dict[str, Any]]


async def copy_session(source: Database, target: Database, session_id: str, secrets: bytes | None) -> bool:
    """Copies a session in one transaction, with these encrypted secrets. Returns whether the target did not have it."""

    def read(connection: Connection) -> dict[str, _Rows]:
        found = {}
        for table, column in _TABLES:
            rows = connection.execute(select(table).where(column == session_id)).mappings()
            found[table.name] = [dict(row) for row in rows]
        return found

    found = await source.read(read)
    for row in found[schema.sessions.name]:
        row["secrets"] = secrets
    for row in found[schema.audit.name]:
        # The number of the row in its own database.
        del row["id"]

    def write(connection: Connection) -> bool:
        known = select(schema.sessions.c.id).where(schema.sessions.c.id == session_id)
        if connection.execute(known).first() is not None:
            return False
        for table, _ in _TABLES:
            if rows := found[table.name]:
                connection.execute(insert(table), rows)
        return True

    return await target.write(write)
