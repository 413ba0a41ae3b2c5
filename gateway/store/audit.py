"""Queries about the audit: decisions about tool calls. gateway/observability/audit.py writes it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields

from gateway.store.database import Database
from gateway.store.deletion import delete_in_parts
from gateway.store.rows import AuditRecord
from gateway.store.sql import Connection, columns, equals, insert, like

_INSERT = insert("audit", [field.name for field in fields(AuditRecord)])
_SEARCHED = " OR ".join(
    f"lower({name}) LIKE lower(:pattern) ESCAPE '/'" for name in ("tool", "call_id", '"by"', "reason", "arguments")
)


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


def _conditions(wanted: AuditFilter) -> Iterator[str]:
    equal = ("session_id", "agent", "tool", "outcome")
    yield from (f"{name} = :{name}" for name in equal if getattr(wanted, name) is not None)
    if wanted.text:
        yield f"({_SEARCHED})"
    if wanted.before is not None:
        yield "id < :before"
    if wanted.owned:
        yield f"session_id IN (SELECT id FROM sessions WHERE {equals('owner', wanted.owner)})"


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
        # One at a time: to search 300,000 decisions takes a second, and others need the threads for reads.
        async with self._searching:
            return await self._database.read(lambda connection: _newest(connection, wanted, limit))

    async def newest(self, limit: int, session_id: str | None = None) -> list[AuditRecord]:
        """Returns the newest decisions, of one session or of all, oldest first."""
        wanted = AuditFilter(session_id=session_id)
        found = await self._database.read(lambda connection: _newest(connection, wanted, limit))
        return [record for _, record in reversed(found)]

    async def delete_before(self, made: float) -> None:
        """Deletes decisions that were made before a time (seconds since the epoch)."""
        query, statement = "SELECT id FROM audit WHERE at < :made ORDER BY at", "DELETE FROM audit WHERE id = :id"
        await delete_in_parts(self._database, query, ["id"], statement, {"made": made})


def insert_decisions(connection: Connection, records: Sequence[AuditRecord]) -> None:
    """Stores decisions within a transaction."""
    if records:
        connection.execute_many(_INSERT, [asdict(record) for record in records])


def _newest(connection: Connection, wanted: AuditFilter, limit: int) -> list[tuple[int, AuditRecord]]:
    where = " AND ".join(["true", *_conditions(wanted)])
    query = f"SELECT id, {columns(AuditRecord)} FROM audit WHERE {where} ORDER BY id DESC LIMIT :limit"
    values = {**asdict(wanted), "pattern": f"%{like(wanted.text or '')}%", "limit": limit}
    return [(number, AuditRecord(*row)) for number, *row in connection.rows(query, values)]
