"""Queries about runs: their state, and what is stored together with a change of it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from drivers.contract.events import Usage
from gateway.store.audit import insert_decisions
from gateway.store.database import Database
from gateway.store.deletion import delete_in_parts
from gateway.store.events import insert_events
from gateway.store.failures import insert_failure
from gateway.store.idempotency_keys import OF_EXECUTION, insert_key, insert_keys_of_events
from gateway.store.messages import insert_messages, mark_not_kept
from gateway.store.queued_messages import delete_queued
from gateway.store.rows import (
    AuditRecord,
    EventRow,
    FailureRecord,
    KeyRecord,
    MessageRow,
    RunRecord,
    RunTimes,
    SettingsRecord,
)
from gateway.store.session_usage import add_usage
from gateway.store.sql import Connection, Parameters, assignments, columns, insert

FOUND_EXECUTIONS = 500
"""Expired executions that are searched for at once: the search reads all runs."""
_STOP = f"UPDATE runs SET {assignments(('state', 'stop_reason', 'ended_at', 'waiting_since'))} WHERE id = :id"
_RESUME = "UPDATE runs SET state = 'running', waiting_since = NULL WHERE id = :id"
_BETWEEN = f"""
SELECT {columns(RunTimes)} FROM runs WHERE log_id = :log_id AND first_seq <= :last
AND first_seq >= coalesce((SELECT max(first_seq) FROM runs WHERE log_id = :log_id AND first_seq <= :first), 0)
ORDER BY first_seq, started_at
"""
_WITHOUT_LEASE = "SELECT DISTINCT log_id FROM runs WHERE state != 'ended' AND log_id NOT IN (SELECT log_id FROM leases)"
_OLD_EXECUTIONS = f"""
SELECT log_id FROM runs WHERE {OF_EXECUTION} AND started_at < :started AND state = 'ended' LIMIT {FOUND_EXECUTIONS}
"""
_OF_EXECUTIONS = (
    # Keys first, so that no request finds an execution without its events. Runs last, since the others are found by them.
    ("SELECT key FROM idempotency_keys WHERE log_id {in_ids}", ["key"], "DELETE FROM idempotency_keys WHERE key = :key"),
    (
        "SELECT log_id, first, {size}(body) FROM events WHERE log_id {in_ids}",
        ["log_id", "first", "size"],
        "DELETE FROM events WHERE log_id = :log_id AND first = :first",
    ),
    ("SELECT log_id FROM leases WHERE log_id {in_ids}", ["log_id"], "DELETE FROM leases WHERE log_id = :log_id"),
    ("SELECT id FROM runs WHERE log_id {in_ids}", ["id"], "DELETE FROM runs WHERE id = :id"),
)
_LAST = "(log_id, first_seq) IN (SELECT log_id, max(first_seq) FROM runs WHERE log_id {in_ids} GROUP BY log_id)"


class RunRepository:
    """Runs of sessions and of executions, by the log that they belong to."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def start(
        self,
        record: RunRecord,
        messages: Sequence[MessageRow] = (),
        event: EventRow | None = None,
        key: KeyRecord | None = None,
        settings: SettingsRecord | None = None,
        cancelled: str | None = None,
        queued: str | None = None,
    ) -> None:
        """Stores a run that starts now: with its prompt, the first event of its turn, the request's key, and new settings.

        `cancelled` is the id of a waiting run that ends for it; its last messages and events come before those of the new run.
        `queued` is the id of the queued message that begins with it, which waits no more.
        """

        def transaction(connection: Connection) -> None:
            _update_settings(connection, record.log_id, settings)
            if cancelled is not None:
                connection.execute(_STOP, _end_values(cancelled, "cancelled"))
            if queued is not None:
                delete_queued(connection, queued)
            insert_run(connection, record)
            insert_messages(connection, record.log_id, messages)
            _insert_turn(connection, event, key)

        await self._database.write(transaction)

    async def stop(
        self,
        run_id: str,
        state: str,
        stop_reason: str | None,
        events: EventRow,
        *,
        waiting_since: float | None = None,
        messages: Sequence[MessageRow] = (),
        keys: Sequence[KeyRecord] = (),
        failure: FailureRecord | None = None,
        usage: Usage | None = None,
        kept: bool = True,
    ) -> None:
        """Stores that a run has `ended` or is `waiting`, with the last events of its turn, its messages and keys, why it failed,
        and what the turn has used. If it is not `kept`, its messages are no part of the conversation."""
        values = {
            "id": run_id,
            "state": state,
            "stop_reason": stop_reason,
            "ended_at": time.time() if state == "ended" else None,
            "waiting_since": waiting_since,
        }

        def transaction(connection: Connection) -> None:
            insert_messages(connection, events.log_id, messages)
            insert_events(connection, events)
            insert_keys_of_events(connection, keys)
            connection.execute(_STOP, values)
            if not kept:
                mark_not_kept(connection, events.log_id, run_id)
            if failure is not None:
                insert_failure(connection, run_id, events.log_id, failure)
            if usage is not None:
                add_usage(connection, events.log_id, usage)

        await self._database.write(transaction)

    async def end(
        self,
        run: RunRecord,
        stop_reason: str,
        events: EventRow | None = None,
        messages: Sequence[MessageRow] = (),
        failure: FailureRecord | None = None,
        *,
        kept: bool = True,
    ) -> None:
        """Stores that a run of an earlier daemon has ended, with the events and messages that it lacks, why it failed, and
        whether its messages are `kept`."""

        def transaction(connection: Connection) -> None:
            insert_messages(connection, run.log_id, messages)
            if events is not None:
                insert_events(connection, events)
            connection.execute(_STOP, _end_values(run.id, stop_reason))
            if not kept:
                mark_not_kept(connection, run.log_id, run.id)
            if failure is not None:
                insert_failure(connection, run.id, run.log_id, failure)

        await self._database.write(transaction)

    async def resume(
        self,
        run_id: str,
        log_id: str,
        results: Sequence[MessageRow],
        event: EventRow | None = None,
        key: KeyRecord | None = None,
        settings: SettingsRecord | None = None,
        decisions: Sequence[AuditRecord] = (),
    ) -> None:
        """Stores that a waiting run is running: with the tool results, the first event of the turn, its key, new settings, and
        the audit of the answers."""

        def transaction(connection: Connection) -> None:
            _update_settings(connection, log_id, settings)
            insert_messages(connection, log_id, results)
            connection.execute(_RESUME, {"id": run_id})
            insert_decisions(connection, decisions)
            _insert_turn(connection, event, key)

        await self._database.write(transaction)

    async def first_seq(self, log_id: str, seq: int) -> int:
        """Returns the number of the first event of the run that an event belongs to; 1 if it belongs to none."""
        query = "SELECT max(first_seq) FROM runs WHERE log_id = :log_id AND first_seq <= :seq"
        values = {"log_id": log_id, "seq": seq}
        return await self._database.read(lambda connection: connection.value(query, values) or 1)

    async def between(self, log_id: str, first: int, last: int) -> list[RunTimes]:
        """Returns the runs that the events from `first` to `last` of a log belong to, in order."""
        values = {"log_id": log_id, "first": first, "last": last}
        return await self._database.read(lambda connection: [RunTimes(*row) for row in connection.execute(_BETWEEN, values)])

    async def next_first_seq(self, run: RunRecord) -> int | None:
        """Returns the number of the first event of the run that came after this one in its log; None if it is the last."""
        query = "SELECT min(first_seq) FROM runs WHERE log_id = :log_id AND first_seq > :first_seq"
        values = {"log_id": run.log_id, "first_seq": run.first_seq}
        return await self._database.read(lambda connection: connection.value(query, values))

    async def unfinished(self, log_id: str | None = None) -> list[RunRecord]:
        """Returns the runs that have not ended, oldest first: all, or those of one log."""
        condition = "state != 'ended'" if log_id is None else "state != 'ended' AND log_id = :log_id"
        return await self._database.read(lambda connection: _records(connection, condition, {"log_id": log_id}))

    async def unfinished_without_lease(self) -> list[str]:
        """Returns the logs with runs that have not ended, and that no node of a cluster ever had a lease of."""
        return await self._database.read(lambda connection: connection.values(_WITHOUT_LEASE))

    async def count_waiting(self) -> int:
        """Returns how many runs wait for their client."""
        query = "SELECT count(*) FROM runs WHERE state = 'waiting'"
        return await self._database.read(lambda connection: int(connection.value(query)))

    async def last(self, log_id: str) -> RunRecord | None:
        """Returns the last run of a log."""
        return (await self.last_of_each([log_id])).get(log_id)

    async def last_of_each(self, log_ids: Sequence[str]) -> dict[str, RunRecord]:
        """Returns the last run of each of these logs that has any, by log."""
        return await self._database.read(lambda connection: last_runs(connection, log_ids))

    async def discard_execution(self, log_id: str) -> None:
        """Deletes an execution that has not begun, with its key."""

        def transaction(connection: Connection) -> None:
            for table in ("idempotency_keys", "runs", "leases"):
                connection.execute(f"DELETE FROM {table} WHERE log_id = :log_id", {"log_id": log_id})

        await self._database.write(transaction)

    async def delete_executions(self, started: float) -> None:
        """Deletes executions that started before a time (seconds since the epoch) and have ended, with their events and keys."""
        while ids := await self._database.read(lambda connection: connection.values(_OLD_EXECUTIONS, {"started": started})):
            for query, names, statement in _OF_EXECUTIONS:
                await delete_in_parts(self._database, query, names, statement, {"ids": ids})


def last_runs(connection: Connection, log_ids: Sequence[str]) -> dict[str, RunRecord]:
    """Returns the last run of each of these logs that has any, by log."""
    return {run.log_id: run for run in _records(connection, _LAST, {"ids": list(log_ids)})}


def _records(connection: Connection, condition: str, values: Parameters) -> list[RunRecord]:
    query = f"SELECT {columns(RunRecord)} FROM runs WHERE {condition} ORDER BY started_at, first_seq"
    return [RunRecord(*row) for row in connection.execute(query, values)]


def insert_run(connection: Connection, record: RunRecord) -> None:
    """Stores a run that starts now, within a transaction."""
    values = {**asdict(record), "started_at": time.time()}
    connection.execute(insert("runs", values), values)


def _end_values(run_id: str, stop_reason: str) -> dict[str, Any]:
    return {"id": run_id, "state": "ended", "stop_reason": stop_reason, "ended_at": time.time(), "waiting_since": None}


def _update_settings(connection: Connection, session_id: str, settings: SettingsRecord | None) -> None:
    if settings is not None:
        values = {"id": session_id, "config": json.dumps(settings.config), "secrets": settings.secrets}
        connection.execute("UPDATE sessions SET config = :config, secrets = :secrets WHERE id = :id", values)


def _insert_turn(connection: Connection, event: EventRow | None, key: KeyRecord | None) -> None:
    if event is not None:
        insert_events(connection, event)
    if key is not None:
        insert_key(connection, key)
