"""Queries about what an agent has reported about its session: a title, and its slash commands; and about the user's title."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from gateway.store import schema
from gateway.store.database import Database
from gateway.store.rows import SessionMetadataRecord


class SessionMetadataRepository:
    """Title and slash commands of each session."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def update(self, session_id: str, **values: str | None) -> None:
        """Sets the `title`, the `chosen_title` or the `commands` (JSON). Does nothing if there is no such session."""
        table, sessions = schema.session_metadata, schema.sessions

        def transaction(connection: Connection) -> None:
            changed = connection.execute(update(table).where(table.c.session_id == session_id).values(**values))
            if changed.rowcount:
                return
            if connection.execute(select(sessions.c.id).where(sessions.c.id == session_id)).first() is not None:
                connection.execute(insert(table).values(session_id=session_id, **values))

        await self._database.write(transaction)

    async def get(self, session_id: str) -> SessionMetadataRecord:
        """Returns what was stored last; empty if nothing was."""
        table = schema.session_metadata
        query = select(table.c.title, table.c.commands, table.c.chosen_title).where(table.c.session_id == session_id)
        row = await self._database.read(lambda connection: connection.execute(query).first())
        return SessionMetadataRecord(*row) if row else SessionMetadataRecord()
