"""Queries about what an agent has reported about its session: a title, and its slash commands; and about the user's title."""

from __future__ import annotations

from gateway.store.database import Database
from gateway.store.rows import SessionMetadataRecord
from gateway.store.sql import Connection, assignments, columns
from gateway.store.words import words_of

_DISPLAYED = "SELECT coalesce(chosen_title, title) FROM session_metadata WHERE session_id = :session_id"
_SET_WORDS = "UPDATE session_metadata SET words = :words WHERE session_id = :session_id"


class SessionMetadataRepository:
    """Title and slash commands of each session."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def update(self, session_id: str, **values: str | None) -> None:
        """Sets the `title`, the `chosen_title` or the `commands` (JSON). Does nothing if there is no such session."""
        given = ", ".join(f":{name}" for name in values)
        statement = f"""
            INSERT INTO session_metadata (session_id, {", ".join(values)})
            SELECT id, {given} FROM sessions WHERE id = :session_id
            ON CONFLICT (session_id) DO UPDATE SET {assignments(values)}
        """
        of_session = {"session_id": session_id}

        def transaction(connection: Connection) -> None:
            connection.execute(statement, {**of_session, **values})
            if values.keys() & {"title", "chosen_title"}:
                title = connection.value(_DISPLAYED, of_session)
                connection.execute(_SET_WORDS, {**of_session, "words": words_of(title or "")})

        await self._database.write(transaction)

    async def get(self, session_id: str) -> SessionMetadataRecord:
        """Returns what was stored last; empty if nothing was."""
        query = f"SELECT {columns(SessionMetadataRecord)} FROM session_metadata WHERE session_id = :session_id"
        row = await self._database.read(lambda connection: connection.first(query, {"session_id": session_id}))
        return SessionMetadataRecord(*row) if row else SessionMetadataRecord()
