"""Queries about the audit: decisions about tool calls. gateway/observability/audit.py writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields

from sqlalchemy import Connection, bindparam, delete, insert, select

from gateway.store import schema
from gateway.store.database import Database
from gateway.store.deletion import delete_in_parts
from gateway.store.rows import AuditRecord

_INSERT = insert(schema.audit)


class AuditRepository:
    """Decisions about tool calls. They stay when their session is deleted."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, records: Sequence[AuditRecord]) -> None:
        """Stores decisions."""
        await self._database.write(lambda connection: insert_decisions(connection, records))

    async def newest(self, limit: int, session_id: str | None = None) -> list[AuditRecord]:
        """Returns the newest decisions, of one session or of all, oldest first."""
        table = schema.audit
        query = select(*(table.c[field.name] for field in fields(AuditRecord))).order_by(table.c.id.desc()).limit(limit)
        if session_id is not None:
            query = query.where(table.c.session_id == session_id)

        def records(connection: Connection) -> list[AuditRecord]:
            return [AuditRecord(**row) for row in reversed(connection.execute(query).mappings().all())]

        return await self._database.read(records)

    async def delete_before(self, made: float) -> None:
        """Deletes decisions that were made before a time (seconds since the epoch)."""
        table = schema.audit
        query = select(table.c.id.label("of_record")).where(table.c.at < made).order_by(table.c.at)
        await delete_in_parts(self._database, query, delete(table).where(table.c.id == bindparam("of_record")))


def insert_decisions(connection: Connection, records: Sequence[AuditRecord]) -> None:
    """Stores decisions within a transaction."""
    if records:
        connection.execute(_INSERT, [asdict(record) for record in records]).close()
