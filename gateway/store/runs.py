"""Queries about runs: their state, and what is stored together with a change of it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, null, select, tuple_, update

from drivers.contract.events import Usage
from gateway.store import schema
from gateway.store.audit import insert_decisions
from gateway.store.database import Database
from gateway.store.deletion import delete_in_parts
from gateway.store.events import insert_events
from gateway.store.failures import insert_failure
from gateway.store.idempotency_keys import insert_key
from gateway.store.messages import insert_messages
from gateway.store.prepared import PreparedStatement, prepared_insert
from gateway.store.rows import (
    EXECUTION_PREFIX,
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

FOUND_EXECUTIONS = 500
"""Expired executions that are searched for at once: the search reads all runs."""
_INSERT = prepared_insert(schema.runs, "id", "log_id", "state", "stop_reason", "first_seq", "started_at", "waiting_since")
_STOP = PreparedStatement(
    update(schema.runs)
    .where(schema.runs.c.id == bindparam("of_run"))
    .values({name: bindparam(name) for name in ("state", "stop_reason", "ended_at", "waiting_since")})
)
_RESUME = PreparedStatement(
    update(schema.runs).where(schema.runs.c.id == bindparam("of_run")).values(state="running", waiting_since=null())
)


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
    ) -> None:
        """Stores a run that starts now: with its prompt, the first event of its turn, the request's key, and new settings.

        `cancelled` is the id of a waiting run that ends for it; its last messages and events come before those of the new run.
        """

        def transaction(connection: Connection) -> None:
            _update_settings(connection, record.log_id, settings)
            if cancelled is not None:
                _STOP.execute(connection, _end_values(cancelled, "cancelled"))
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
        failure: FailureRecord | None = None,
        usage: Usage | None = None,
    ) -> None:
        """Stores that a run has `ended` or is `waiting`, with the last events of its turn, its messages, why it failed, and what
        the turn has used."""
        values = {
            "of_run": run_id,
            "state": state,
            "stop_reason": stop_reason,
            "ended_at": time.time() if state == "ended" else None,
            "waiting_since": waiting_since,
        }

        def transaction(connection: Connection) -> None:
            insert_messages(connection, events.log_id, messages)
            insert_events(connection, events)
            _STOP.execute(connection, values)
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
    ) -> None:
        """Stores that a run of an earlier daemon has ended, with the events and messages that it lacks, and why it failed."""

        def transaction(connection: Connection) -> None:
            insert_messages(connection, run.log_id, messages)
            if events is not None:
                insert_events(connection, events)
            _STOP.execute(connection, _end_values(run.id, stop_reason))
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
            _RESUME.execute(connection, {"of_run": run_id})
            insert_decisions(connection, decisions)
            _insert_turn(connection, event, key)

        await self._database.write(transaction)

    async def first_seq(self, log_id: str, seq: int) -> int:
        """Returns the number of the first event of the run that an event belongs to; 1 if it belongs to none."""
        table = schema.runs.c
        query = select(func.max(table.first_seq)).where(table.log_id == log_id, table.first_seq <= seq)
        return await self._database.read(lambda connection: connection.execute(query).scalar() or 1)

    async def between(self, log_id: str, first: int, last: int) -> list[RunTimes]:
        """Returns the runs that the events from `first` to `last` of a log belong to, in order."""
        table = schema.runs
        of_first = select(func.max(table.c.first_seq)).where(table.c.log_id == log_id, table.c.first_seq <= first)
        query = select(*(table.c[field.name] for field in fields(RunTimes))).where(table.c.log_id == log_id)
        query = query.where(table.c.first_seq >= func.coalesce(of_first.scalar_subquery(), 0), table.c.first_seq <= last)
        query = query.order_by(table.c.first_seq, table.c.started_at)
        return await self._database.read(lambda connection: [RunTimes(**row) for row in connection.execute(query).mappings()])

    async def next_first_seq(self, run: RunRecord) -> int | None:
        """Returns the number of the first event of the run that came after this one in its log; None if it is the last."""
        table = schema.runs.c
        query = select(func.min(table.first_seq)).where(table.log_id == run.log_id, table.first_seq > run.first_seq)
        return await self._database.read(lambda connection: connection.execute(query).scalar())

    async def unfinished(self, log_id: str | None = None) -> list[RunRecord]:
        """Returns the runs that have not ended, oldest first: all, or those of one log."""
        unfinished = schema.runs.c.state != "ended"
        return await self._records(unfinished if log_id is None else unfinished & (schema.runs.c.log_id == log_id))

    async def unfinished_without_lease(self) -> list[str]:
        """Returns the logs with runs that have not ended, and that no node of a cluster ever had a lease of."""
        runs, leases = schema.runs, schema.leases
        query = select(runs.c.log_id).distinct().where(runs.c.state != "ended", runs.c.log_id.not_in(select(leases.c.log_id)))
        return await self._database.read(lambda connection: list(connection.execute(query).scalars()))

    async def count_waiting(self) -> int:
        """Returns how many runs wait for their client."""
        query = select(func.count()).where(schema.runs.c.state == "waiting")
        return await self._database.read(lambda connection: int(connection.execute(query).scalar_one()))

    async def last(self, log_id: str) -> RunRecord | None:
        """Returns the last run of a log."""
        return (await self.last_of_each([log_id])).get(log_id)

    async def last_of_each(self, log_ids: Sequence[str]) -> dict[str, RunRecord]:
        """Returns the last run of each of these logs that has any, by log."""
        return await self._database.read(lambda connection: last_runs(connection, log_ids))

    async def discard_execution(self, log_id: str) -> None:
        """Deletes an execution that has not begun, with its key."""
        runs, keys = schema.runs, schema.idempotency_keys

        def transaction(connection: Connection) -> None:
            for table in (keys, runs, schema.leases):
                connection.execute(delete(table).where(table.c.log_id == log_id))

        await self._database.write(transaction)

    async def delete_executions(self, started: float) -> None:
        """Deletes executions that started before a time (seconds since the epoch) and have ended, with their events and keys."""
        runs, events, keys, leases = schema.runs, schema.events, schema.idempotency_keys, schema.leases
        is_execution = runs.c.log_id.startswith(EXECUTION_PREFIX, autoescape=True)
        old = (
            select(runs.c.log_id)
            .where(is_execution, runs.c.started_at < started, runs.c.state == "ended")
            .limit(FOUND_EXECUTIONS)
        )
        columns = events.c.log_id.label("of_log"), events.c.first.label("number"), func.length(events.c.body).label("size")
        of_event = delete(events).where(events.c.log_id == bindparam("of_log"), events.c.first == bindparam("number"))
        while ids := await self._database.read(lambda connection: list(connection.execute(old).scalars())):
            # Keys first, so that no request finds an execution without its events. Runs last, since the others are found by them.
            of_keys = select(keys.c.key.label("of_key")).where(keys.c.log_id.in_(ids))
            await delete_in_parts(self._database, of_keys, delete(keys).where(keys.c.key == bindparam("of_key")))
            await delete_in_parts(self._database, select(*columns).where(events.c.log_id.in_(ids)), of_event)
            of_leases = select(leases.c.log_id.label("of_log")).where(leases.c.log_id.in_(ids))
            await delete_in_parts(self._database, of_leases, delete(leases).where(leases.c.log_id == bindparam("of_log")))
            of_runs = select(runs.c.id.label("of_run")).where(runs.c.log_id.in_(ids))
            await delete_in_parts(self._database, of_runs, delete(runs).where(runs.c.id == bindparam("of_run")))

    async def _records(self, condition: Any) -> list[RunRecord]:
        return await self._database.read(lambda connection: _records(connection, condition))


def last_runs(connection: Connection, log_ids: Sequence[str]) -> dict[str, RunRecord]:
    """Returns the last run of each of these logs that has any, by log."""
    table = schema.runs
    newest = select(table.c.log_id, func.max(table.c.first_seq)).where(table.c.log_id.in_(log_ids)).group_by(table.c.log_id)
    return {run.log_id: run for run in _records(connection, tuple_(table.c.log_id, table.c.first_seq).in_(newest))}


def _records(connection: Connection, condition: Any) -> list[RunRecord]:
    table = schema.runs
    columns = (table.c[field.name] for field in fields(RunRecord))
    query = select(*columns).where(condition).order_by(table.c.started_at, table.c.first_seq)
    return [RunRecord(**row) for row in connection.execute(query).mappings()]


def insert_run(connection: Connection, record: RunRecord) -> None:
    """Stores a run that starts now, within a transaction."""
    _INSERT.execute(connection, {**asdict(record), "started_at": time.time()})


def _end_values(run_id: str, stop_reason: str) -> dict[str, Any]:
    return {"of_run": run_id, "state": "ended", "stop_reason": stop_reason, "ended_at": time.time(), "waiting_since": None}


def _update_settings(connection: Connection, session_id: str, settings: SettingsRecord | None) -> None:
    if settings is not None:
        values = {"config": json.dumps(settings.config), "secrets": settings.secrets}
        connection.execute(update(schema.sessions).where(schema.sessions.c.id == session_id).values(**values))


def _insert_turn(connection: Connection, event: EventRow | None, key: KeyRecord | None) -> None:
    if event is not None:
        insert_events(connection, event)
    if key is not None:
        insert_key(connection, key)
