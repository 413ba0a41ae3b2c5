"""What is kept of a session beside its messages: its last compaction, and what its agent has told of it."""

from __future__ import annotations

from sqlalchemy import delete, func, insert, select, update

from gateway.store import schema
from gateway.store.core_engine import AsyncConnection
from gateway.store.database import Database, whole


class NoteStore(Database):
    """Every method is one transaction; nothing happens if there is no such session."""

    @whole
    async def compact(self, session_id: str, kept: int, summary: str) -> None:
        """Note that all messages but the last `kept` are summed up by now."""
        counted = select(func.count()).where(schema.messages.c.session_id == session_id)
        async with self._write() as connection:
            if await _is_there(connection, session_id):
                first = max(0, (await connection.execute(counted)).scalar_one() - kept)
                await connection.execute(delete(schema.compactions).where(schema.compactions.c.session_id == session_id))
                values = {"session_id": session_id, "first_kept": first, "summary": summary}
                await connection.execute(insert(schema.compactions).values(**values))

    async def compaction(self, session_id: str) -> tuple[int, str] | None:
        """(number of the first message that was kept, summary of those before) of the last compaction."""
        table = schema.compactions
        async with self._engine.connect() as connection:
            query = select(table.c.first_kept, table.c.summary).where(table.c.session_id == session_id)
            row = (await connection.execute(query)).first()
        return (row.first_kept, row.summary) if row else None

    @whole
    async def note(self, session_id: str, **values: str | None) -> None:
        """Keep the `title` or the `commands` (JSON) that its agent has told."""
        table = schema.notes
        async with self._write() as connection:
            changed = await connection.execute(update(table).where(table.c.session_id == session_id).values(**values))
            if not changed.rowcount and await _is_there(connection, session_id):
                await connection.execute(insert(table).values(session_id=session_id, **values))

    async def notes(self, session_id: str) -> tuple[str | None, str | None]:
        """Its title and its commands (JSON), as its agent has told them last; None where it has not."""
        table = schema.notes
        async with self._engine.connect() as connection:
            query = select(table.c.title, table.c.commands).where(table.c.session_id == session_id)
            row = (await connection.execute(query)).first()
        return (row.title, row.commands) if row else (None, None)


async def _is_there(connection: AsyncConnection, session_id: str) -> bool:
    return (await connection.execute(select(schema.sessions.c.id).where(schema.sessions.c.id == session_id))).first() is not None
