"""Queries about the last compaction of a session's conversation by its CLI."""

from __future__ import annotations

from gateway.store.database import Database

_FIRST_KEPT = """
SELECT CASE WHEN count(*) > :kept THEN count(*) - :kept ELSE 0 END FROM messages WHERE session_id = sessions.id
"""
_SET = f"""
INSERT INTO compactions (session_id, first_kept, summary)
SELECT id, ({_FIRST_KEPT}), :summary FROM sessions WHERE id = :session_id
ON CONFLICT (session_id) DO UPDATE SET first_kept = excluded.first_kept, summary = excluded.summary
"""


class CompactionRepository:
    """The last compaction of each session."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def set(self, session_id: str, kept: int, summary: str) -> None:
        """Stores that a summary replaces all messages but the last `kept`. Does nothing if there is no such session."""
        values = {"session_id": session_id, "kept": kept, "summary": summary}
        await self._database.write(lambda connection: connection.execute(_SET, values))

    async def get(self, session_id: str) -> tuple[int, str] | None:
        """Returns the position of the first message that was kept, and the summary of those before it."""
        query = "SELECT first_kept, summary FROM compactions WHERE session_id = :session_id"
        row = await self._database.read(lambda connection: connection.first(query, {"session_id": session_id}))
        return (row[0], row[1]) if row else None
