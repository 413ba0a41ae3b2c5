"""Queries about the last compaction of a session's conversation by its CLI."""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, insert, select

from gateway.store import schema
from gateway.store.database import Database


class CompactionRepository:
    """The last compaction of each session."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(self, session_id: str, kept: int, summary: str) -> None:
        """Stores that a summary replaces all messages but the last `kept`. Does nothing if there is no such session."""
        table, sessions, messages = schema.compactions, schema.sessions, schema.messages
        counted = select(func.count()).where(messages.c.session_id == session_id)

        def transaction(connection: Connection) -> None:
            if connection.execute(select(sessions.c.id).where(sessions.c.id == session_id)).first() is None:
                return
            first = max(0, connection.execute(counted).scalar_one() - kept)
            connection.execute(delete(table).where(table.c.session_id == session_id))
            connection.execute(insert(table).values(session_id=session_id, first_kept=first, summary=summary))

        await self._database.write(transaction)

    async def get(self, session_id: str) -> tuple[int, str] | None:
        """Returns the position of the first message that was kept, and the summary of those before it."""
        table = schema.compactions
        query = select(table.c.first_kept, table.c.summary).where(table.c.session_id == session_id)
        row = await self._database.read(lambda connection: connection.execute(query).first())
        return (row.first_kept, row.summary) if row else None
