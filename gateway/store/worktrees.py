"""Queries about the worktrees of sessions."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import delete, insert, select, update

from gateway.store import schema
from gateway.store.database import Database
from gateway.store.rows import WorktreeRecord


class WorktreeRepository:
    """One row for each worktree, by the id of its session."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, record: WorktreeRecord) -> None:
        """Stores a worktree of a session that has none."""
        statement = insert(schema.worktrees).values(**asdict(record))
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def update(self, session_id: str, **values: str | bool | None) -> None:
        """Sets columns of a worktree. Does nothing if there is no such one."""
        statement = update(schema.worktrees).where(schema.worktrees.c.session_id == session_id).values(**values)
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def remove(self, session_id: str, path: str) -> None:
        """Deletes the row of a worktree, if there is one. Another one of this session, with another path, stays."""
        table = schema.worktrees
        statement = delete(table).where(table.c.session_id == session_id, table.c.path == path)
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def get(self, session_id: str) -> WorktreeRecord | None:
        """Returns the worktree of a session; None if it has none."""
        query = select(schema.worktrees).where(schema.worktrees.c.session_id == session_id)
        row = await self._database.read(lambda connection: connection.execute(query).mappings().first())
        return WorktreeRecord(**row) if row is not None else None

    async def all(self) -> list[WorktreeRecord]:
        """Returns the worktrees of all owners, the newest first."""
        query = select(schema.worktrees).order_by(schema.worktrees.c.created_at.desc(), schema.worktrees.c.session_id)
        return await self._database.read(
            lambda connection: [WorktreeRecord(**row) for row in connection.execute(query).mappings()]
        )

    async def without_session(self) -> list[WorktreeRecord]:
        """Returns those whose session does not exist, and those that are not ready."""
        table = schema.worktrees
        query = select(table).where(~table.c.ready | table.c.session_id.not_in(select(schema.sessions.c.id)))
        return await self._database.read(
            lambda connection: [WorktreeRecord(**row) for row in connection.execute(query).mappings()]
        )
