"""Queries about the worktrees of sessions."""

from __future__ import annotations

from dataclasses import asdict, replace

from gateway.store.database import Database
from gateway.store.rows import WorktreeRecord
from gateway.store.sql import Connection, assignments, columns, insert

_SELECT = f"SELECT {columns(WorktreeRecord)} FROM worktrees"


class WorktreeRepository:
    """One row for each worktree, by the id of its session."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, record: WorktreeRecord) -> None:
        """Stores a worktree of a session that has none."""
        values = asdict(record)
        await self._database.write(lambda connection: connection.execute(insert("worktrees", values), values))

    async def update(self, session_id: str, **values: str | bool | None) -> None:
        """Sets columns of a worktree. Does nothing if there is no such one."""
        statement = f"UPDATE worktrees SET {assignments(values)} WHERE session_id = :session_id"
        await self._database.write(lambda connection: connection.execute(statement, {**values, "session_id": session_id}))

    async def remove(self, session_id: str, path: str) -> None:
        """Deletes the row of a worktree, if there is one. Another one of this session, with another path, stays."""
        statement, values = "DELETE FROM worktrees WHERE session_id = :id AND path = :path", {"id": session_id, "path": path}
        await self._database.write(lambda connection: connection.execute(statement, values))

    async def get(self, session_id: str) -> WorktreeRecord | None:
        """Returns the worktree of a session; None if it has none."""
        found = await self._found("WHERE session_id = :id", id=session_id)
        return found[0] if found else None

    async def all(self) -> list[WorktreeRecord]:
        """Returns the worktrees of all owners, the newest first."""
        return await self._found("ORDER BY created_at DESC, session_id")

    async def without_session(self) -> list[WorktreeRecord]:
        """Returns those whose session does not exist, and those that are not ready."""
        return await self._found("WHERE NOT ready OR session_id NOT IN (SELECT id FROM sessions)")

    async def _found(self, condition: str, **values: str) -> list[WorktreeRecord]:
        def read(connection: Connection) -> list[WorktreeRecord]:
            rows = connection.rows(f"{_SELECT} {condition}", values)
            # SQLite has numbers for truth.
            return [replace(WorktreeRecord(*row), ready=bool(row[-1])) for row in rows]

        return await self._database.read(read)
