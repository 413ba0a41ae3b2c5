"""Queries about the agent processes that run, so that a later daemon finds those that a killed one has left running."""

from __future__ import annotations

from sqlalchemy import delete, insert, select

from gateway.store import schema
from gateway.store.database import Database


class ProcessRepository:
    """The ledger of drivers.runtime.process.Spawner."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def started(self, marker: str, pid: int, created: float) -> None:
        """Stores a process by its marker, its pid and its start time (seconds since the epoch)."""
        statement = insert(schema.processes).values(marker=marker, pid=pid, started_at=created)
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def ended(self, *markers: str) -> None:
        """Deletes processes; those that are not stored are ignored."""
        if markers:
            statement = delete(schema.processes).where(schema.processes.c.marker.in_(markers))
            await self._database.write(lambda connection: connection.execute(statement).close())

    async def all(self) -> list[tuple[str, int, float]]:
        """Returns (marker, pid, start time) of every stored process."""
        query = select(schema.processes)
        return await self._database.read(
            lambda connection: [(row.marker, row.pid, row.started_at) for row in connection.execute(query)]
        )
