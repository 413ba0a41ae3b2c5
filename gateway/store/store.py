"""What is stored and how it is asked for: a method each, and each a small transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import Select, delete, func, insert, select, tuple_, update

from gateway.store import schema, turn_writes
from gateway.store.database import whole
from gateway.store.metadata import NoteStore
from gateway.store.records import AuditRecord, EventRow, KeyRecord, RunRecord, SessionCard, SessionRecord
from gateway.store.session_list import newest_cards

Cursor = tuple[float, str]
EXECUTION = "exec_"
"""What the ids of executions' logs begin with."""


class Store(NoteStore):
    """Open with `await Store.open(url)`. Every method is one transaction; it is on disk when the method returns."""

    # -- sessions ---------------------------------------------------------------------------------------------------

    @whole
    async def create_session(
        self, record: SessionRecord, history: Sequence[str], run: RunRecord | None = None, key: KeyRecord | None = None
    ) -> None:
        """Store a session with its first messages (JSON texts), the run that they leave waiting, and the key of its making."""
        values = {**asdict(record), "config": json.dumps(record.config)}
        async with self._write() as connection:
            await connection.execute(insert(schema.sessions).values(**values))
            await turn_writes.append_messages(connection, record.id, history)
            if run is not None:
                await turn_writes.start_run(connection, run)
            await turn_writes.begin_turn(connection, None, key)

    async def session(self, session_id: str) -> SessionRecord | None:
        found = await self._sessions(select(schema.sessions).where(schema.sessions.c.id == session_id))
        return found[0] if found else None

    async def sessions(self, limit: int, after: Cursor | None = None, owner: str | None = None) -> list[SessionRecord]:
        """Sessions, newest first, those after the cursor (created_at, id) only; with an owner, that one's only."""
        table = schema.sessions
        query = select(table).order_by(table.c.created_at.desc(), table.c.id.desc()).limit(limit)
        if after is not None:
            query = query.where(tuple_(table.c.created_at, table.c.id) < tuple_(*after))
        return await self._sessions(query if owner is None else query.where(table.c.owner == owner))

    async def _sessions(self, query: Select[Any]) -> list[SessionRecord]:
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).mappings()
            return [SessionRecord(**{**row, "config": json.loads(row["config"])}) for row in rows]

    async def session_cards(self, agent: str, owner: str | None, limit: int, after: Cursor | None = None) -> list[SessionCard]:
        """One agent's sessions, newest first; of an owner only, if one is given."""
        async with self._engine.connect() as connection:
            rows = (await connection.execute(newest_cards(agent, owner, limit, after))).mappings()
            return [SessionCard(**{**row, "config": json.loads(row["config"])}) for row in rows]

    @whole
    async def update_session(self, session_id: str, **values: Any) -> None:
        """Set columns of a session: `config` (JSON data), `secrets`, `native_id`."""
        if "config" in values:
            values["config"] = json.dumps(values["config"])
        async with self._write() as connection:
            await connection.execute(update(schema.sessions).where(schema.sessions.c.id == session_id).values(**values))

    @whole
    async def delete_session(self, session_id: str) -> None:
        """Delete a session with its messages, runs and events."""
        async with self._write() as connection:
            for table in (schema.events, schema.runs):
                await connection.execute(delete(table).where(table.c.log_id == session_id))
            for table in (schema.compactions, schema.notes, schema.messages):
                await connection.execute(delete(table).where(table.c.session_id == session_id))
            await connection.execute(delete(schema.sessions).where(schema.sessions.c.id == session_id))

    # -- messages ---------------------------------------------------------------------------------------------------

    @whole
    async def append_messages(self, session_id: str, bodies: Sequence[str]) -> None:
        """Add messages (JSON texts) at the end of a session's history."""
        async with self._write() as connection:
            await turn_writes.append_messages(connection, session_id, bodies)

    async def messages(self, session_id: str) -> list[str]:
        """A session's whole history as JSON texts, in order."""
        table = schema.messages
        query = select(table.c.body).where(table.c.session_id == session_id).order_by(table.c.position)
        async with self._engine.connect() as connection:
            return list((await connection.execute(query)).scalars())

    # -- runs and events --------------------------------------------------------------------------------------------

    @whole
    async def start_run(
        self, record: RunRecord, history: Sequence[str] = (), begin: EventRow | None = None, key: KeyRecord | None = None
    ) -> None:
        """Store a run that begins now, with the messages and the event that it begins with, and the key it was asked under."""
        async with self._write() as connection:
            await turn_writes.start_run(connection, record)
            await turn_writes.append_messages(connection, record.log_id, history)
            await turn_writes.begin_turn(connection, begin, key)

    @whole
    async def stop_run(
        self, run_id: str, state: str, stop_reason: str | None, events: EventRow, *, waiting_since: float | None = None
    ) -> None:
        """Mark a run as ended or waiting and store the last events of its turn, both or none."""
        async with self._write() as connection:
            await turn_writes.append_events(connection, events)
            await turn_writes.stop_run(connection, run_id, state, stop_reason, waiting_since)

    @whole
    async def answer_run(
        self, run_id: str, log_id: str, results: Sequence[str], begin: EventRow | None = None, key: KeyRecord | None = None
    ) -> None:
        """Store the client's answers (JSON texts), the event that their turn begins with, and that the run is at work again."""
        async with self._write() as connection:
            await turn_writes.append_messages(connection, log_id, results)
            await turn_writes.at_work_again(connection, run_id)
            await turn_writes.begin_turn(connection, begin, key)

    async def run_start(self, log_id: str, seq: int) -> int:
        """The number of the first event of the run to which an event belongs; 1 if it belongs to none."""
        table = schema.runs.c
        query = select(func.max(table.first_seq)).where(table.log_id == log_id, table.first_seq <= seq)
        async with self._engine.connect() as connection:
            return (await connection.execute(query)).scalar() or 1

    async def unfinished_runs(self) -> list[RunRecord]:
        """The runs that had not ended when the daemon did."""
        return await self._runs(schema.runs.c.state != "ended")

    async def waiting_runs(self) -> int:
        """How many runs wait for their client."""
        async with self._engine.connect() as connection:
            query = select(func.count()).where(schema.runs.c.state == "waiting")
            return int((await connection.execute(query)).scalar_one())

    async def last_run(self, log_id: str) -> RunRecord | None:
        return (await self.last_runs([log_id])).get(log_id)

    async def last_runs(self, log_ids: Sequence[str]) -> dict[str, RunRecord]:
        """The last run of each of these logs that has any, by log."""
        table = schema.runs
        newest = select(table.c.log_id, func.max(table.c.first_seq)).where(table.c.log_id.in_(log_ids)).group_by(table.c.log_id)
        return {run.log_id: run for run in await self._runs(tuple_(table.c.log_id, table.c.first_seq).in_(newest))}

    async def _runs(self, condition: Any) -> list[RunRecord]:
        table = schema.runs
        columns = (table.c[field.name] for field in fields(RunRecord))
        async with self._engine.connect() as connection:
            rows = await connection.execute(select(*columns).where(condition).order_by(table.c.started_at, table.c.first_seq))
            return [RunRecord(**row) for row in rows.mappings()]

    @whole
    async def append_events(self, log_id: str, first: int, last: int, body: bytes) -> None:
        """Store the events first..last of a log, one JSON a line."""
        async with self._write() as connection:
            await turn_writes.append_events(connection, EventRow(log_id, first, last, body))

    async def events(self, log_id: str, after: int, rows: int = 16) -> list[tuple[int, bytes]]:
        """Some stored rows that hold events after a number: (first number, JSON lines); [] if there are none."""
        table = schema.events
        query = select(table.c.first, table.c.body).where(table.c.log_id == log_id, table.c.last > after)
        async with self._engine.connect() as connection:
            return [(row.first, row.body) for row in await connection.execute(query.order_by(table.c.first).limit(rows))]

    async def last_seq(self, log_id: str) -> int:
        """The number of a log's last stored event, 0 if it has none."""
        query = select(func.coalesce(func.max(schema.events.c.last), 0)).where(schema.events.c.log_id == log_id)
        async with self._engine.connect() as connection:
            return int((await connection.execute(query)).scalar_one())

    # -- idempotency keys -------------------------------------------------------------------------------------------

    async def key(self, key: str) -> KeyRecord | None:
        """What was asked for under a (hashed) key."""
        table = schema.idempotency_keys.c
        query = select(table.key, table.digest, table.log_id, table.first_seq).where(table.key == key)
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).mappings().first()
        return KeyRecord(**row) if row else None

    @whole
    async def add_key(self, record: KeyRecord) -> None:
        async with self._write() as connection:
            await turn_writes.begin_turn(connection, None, record)

    @whole
    async def forget(self, executions: float, keys: float) -> None:
        """Delete executions and keys made before a time each (seconds since the epoch)."""
        runs, known = schema.runs.c, schema.idempotency_keys.c
        old = select(runs.log_id).where(runs.log_id.startswith(EXECUTION, autoescape=True), runs.started_at < executions)
        async with self._write() as connection:
            of_executions = known.log_id.startswith(EXECUTION, autoescape=True)
            await connection.execute(delete(schema.idempotency_keys).where(known.log_id.in_(old)))
            await connection.execute(delete(schema.idempotency_keys).where(known.created_at < keys, ~of_executions))
            await connection.execute(delete(schema.events).where(schema.events.c.log_id.in_(old)))
            await connection.execute(delete(schema.runs).where(runs.log_id.in_(old)))

    # -- audit --------------------------------------------------------------------------------------------------------

    @whole
    async def append_audit(self, records: Sequence[AuditRecord]) -> None:
        """Store some decisions about tool calls."""
        async with self._write() as connection:
            await turn_writes.append_audit(connection, records)

    async def audit(self, limit: int, session_id: str | None = None) -> list[AuditRecord]:
        """The newest decisions, of one session or of all, oldest first."""
        table = schema.audit
        query = select(*(table.c[field.name] for field in fields(AuditRecord))).order_by(table.c.id.desc()).limit(limit)
        if session_id is not None:
            query = query.where(table.c.session_id == session_id)
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).mappings().all()
        return [AuditRecord(**row) for row in reversed(rows)]

    @whole
    async def forget_audit(self, before: float) -> None:
        """Delete decisions made before a time (seconds since the epoch)."""
        async with self._write() as connection:
            await connection.execute(delete(schema.audit).where(schema.audit.c.at < before))

    # -- processes: the ledger of the spawner -------------------------------------------------------------------------

    @whole
    async def started(self, marker: str, pid: int, created: float) -> None:
        async with self._write() as connection:
            await connection.execute(insert(schema.processes).values(marker=marker, pid=pid, started_at=created))

    @whole
    async def ended(self, marker: str) -> None:
        async with self._write() as connection:
            await connection.execute(delete(schema.processes).where(schema.processes.c.marker == marker))

    async def processes(self) -> list[tuple[str, int, float]]:
        """(marker, pid, start time) of every process that is written down."""
        async with self._engine.connect() as connection:
            rows = await connection.execute(select(schema.processes))
            return [(row.marker, row.pid, row.started_at) for row in rows]
