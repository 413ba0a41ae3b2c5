"""Queries about why runs of sessions failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from gateway.store.database import Database
from gateway.store.messages import NEXT_POSITION
from gateway.store.rows import FailureRecord
from gateway.store.sql import Connection

_INSERT = f"""
INSERT INTO failures (run_id, session_id, position, reason, without_text)
VALUES (:run_id, :session_id, {NEXT_POSITION}, :reason, :without_text)
"""


class FailureRepository:
    """The failures of each session. They are stored with the ends of runs (runs.py)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def without_text(self, session_id: str) -> list[tuple[int, str]]:
        """Returns the reasons of the failed turns without text, in order, each with the number of messages before it."""
        query = "SELECT position, reason FROM failures WHERE session_id = :session_id AND without_text ORDER BY position"
        values = {"session_id": session_id}
        return await self._database.read(
            lambda connection: [(position, reason) for position, reason in connection.execute(query, values)]
        )


def failure_reasons(connection: Connection, run_ids: Sequence[str]) -> dict[str, str]:
    """Returns why runs failed, by their ids. Runs without a stored reason are omitted."""
    if not run_ids:
        return {}
    found = connection.execute("SELECT run_id, reason FROM failures WHERE run_id {in_ids}", {"ids": list(run_ids)})
    return {run_id: reason for run_id, reason in found}


def insert_failure(connection: Connection, run_id: str, session_id: str, failure: FailureRecord) -> None:
    """Stores why a run failed, within the transaction that has stored its last messages."""
    connection.execute(_INSERT, {"run_id": run_id, "session_id": session_id, **asdict(failure)})
