"""Queries about the agent processes that run, so that a later daemon finds those that a killed one has left running."""

from __future__ import annotations

from gateway.store.database import Database
from gateway.store.sql import insert


class ProcessRepository:
    """The ledger of drivers.runtime.process.Spawner."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def started(self, marker: str, pid: int, created: float) -> None:
        """Stores a process by its marker, its pid and its start time (seconds since the epoch)."""
        values = {"marker": marker, "pid": pid, "started_at": created}
        await self._database.write(lambda connection: connection.execute(insert("processes", values), values))

    async def ended(self, *markers: str) -> None:
        """Deletes processes; those that are not stored are ignored."""
        if markers:
            statement, values = "DELETE FROM processes WHERE marker {in_markers}", {"markers": list(markers)}
            await self._database.write(lambda connection: connection.execute(statement, values))

    async def all(self) -> list[tuple[str, int, float]]:
        """Returns (marker, pid, start time) of every stored process."""
        query = "SELECT marker, pid, started_at FROM processes"
        return await self._database.read(lambda connection: [(row[0], row[1], row[2]) for row in connection.rows(query)])
