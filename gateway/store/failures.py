"""Queries about why runs of sessions failed."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, insert, select

from gateway.store import schema
from gateway.store.database import Database
from gateway.store.rows import FailureRecord


class FailureRepository:
    """The failures of each session. They are stored with the ends of runs (runs.py)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def without_text(self, session_id: str) -> list[tuple[int, str]]:
        """Returns the reasons of the failed turns without text, in order, each with the number of messages before it."""
        table = schema.failures.c
        query = select(table.position, table.reason).where(table.session_id == session_id, table.without_text)
        query = query.order_by(table.position)
        return await self._database.read(lambda connection: [(row.position, row.reason) for row in connection.execute(query)])


def failure_reasons(connection: Connection, run_ids: Sequence[str]) -> dict[str, str]:
    """Returns why runs failed, by their ids. Runs without a stored reason are omitted."""
    if not run_ids:
        return {}
    table = schema.failures.c
    query = select(table.run_id, table.reason).where(table.run_id.in_(run_ids))
    return {row.run_id: row.reason for row in connection.execute(query)}


def insert_failure(connection: Connection, run_id: str, session_id: str, failure: FailureRecord) -> None:
    """Stores why a run failed, within the transaction that has stored its last messages."""
    messages = schema.messages.c
    count = select(func.coalesce(func.max(messages.position) + 1, 0)).where(messages.session_id == session_id)
    connection.execute(
        insert(schema.failures).values(
            run_id=run_id,
            session_id=session_id,
            position=count.scalar_subquery(),
            reason=failure.reason,
            without_text=failure.without_text,
        )
    )
