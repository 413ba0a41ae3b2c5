"""Queries about the audit: decisions about tool calls. gateway/observability/audit.py writes it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields

from sqlalchemy import ColumnElement, Connection, bindparam, delete, insert, or_, select

from gateway.store import schema
from gateway.store.database import Database
from gateway.store.deletion import delete_in_parts
from gateway.store.rows import AuditRecord

_INSERT = insert(schema.audit)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which decisions are wanted; None is any. `text` is a part of the tool, the call, the decider, the reason or the arguments.

    `before` is a number of a decision: only older ones. With `owned`, only those of sessions of the key named `owner`.
    """

    session_id: str | None = None
    agent: str | None = None
    tool: str | None = None
    outcome: str | None = None
    text: str | None = None
    before: int | None = None
    owned: bool = False
    owner: str | None = None


def _conditions(wanted: AuditFilter) -> Iterator[ColumnElement[bool]]:
    table, sessions = schema.audit, schema.sessions
    equal = {"session_id": wanted.session_id, "agent": wanted.agent, "tool": wanted.tool, "outcome": wanted.outcome}
    yield from (table.c[name] == value for name, value in equal.items() if value is not None)
    if wanted.text:
        searched = (table.c.tool, table.c.call_id, table.c.by, table.c.reason, table.c.arguments)
        yield or_(*(column.icontains(wanted.text, autoescape=True) for column in searched))
    if wanted.before is not None:
        yield table.c.id < wanted.before
    if wanted.owned:
        yield table.c.session_id.in_(select(sessions.c.id).where(sessions.c.owner == wanted.owner))


class AuditRepository:
    """Decisions about tool calls. They stay when their session is deleted."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._searching = asyncio.Lock()

    async def append(self, records: Sequence[AuditRecord]) -> None:
        """Stores decisions."""
        await self._database.write(lambda connection: insert_decisions(connection, records))

    async def search(self, wanted: AuditFilter, limit: int) -> list[tuple[int, AuditRecord]]:
        """Returns the newest decisions that match, newest first, each with its number."""
        table = schema.audit
        query = select(table.c.id.label("number"), *(table.c[field.name] for field in fields(AuditRecord)))
        query = query.where(*_conditions(wanted)).order_by(table.c.id.desc()).limit(limit)

        def records(connection: Connection) -> list[tuple[int, AuditRecord]]:
            rows = [dict(row) for row in connection.execute(query).mappings()]
            return [(row.pop("number"), AuditRecord(**row)) for row in rows]

        # One at a time: to search 300,000 decisions takes a second, and others need the threads for reads.
        async with self._searching:
            return await self._database.read(records)

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
