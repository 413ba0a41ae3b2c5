"""The store over SQLAlchemy's async engine: small transactions, one writer at a time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import wraps
from typing import Any, ParamSpec

from sqlalchemy import bindparam, delete, func, insert, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from gateway.errors import ConfigError
from gateway.store import schema
from gateway.store.migrations import migrate
from gateway.store.records import RunRecord, SessionRecord
from gateway.store.sqlite import set_up_sqlite

Cursor = tuple[float, str]
Arguments = ParamSpec("Arguments")

# What a turn does, made once: building a statement costs more than running it.
_START_RUN = insert(schema.runs)
_SET_RUN = (
    update(schema.runs)
    .where(schema.runs.c.id == bindparam("of_run"))
    .values(state=bindparam("state"), stop_reason=bindparam("stop_reason"), ended_at=bindparam("ended_at"))
)
_APPEND_EVENTS = insert(schema.events)
_NEXT_POSITION = (
    select(func.coalesce(func.max(schema.messages.c.position) + 1, 0))
    .where(schema.messages.c.session_id == bindparam("of_session"))
    .scalar_subquery()
)
_APPEND_MESSAGE = insert(schema.messages).values(
    session_id=bindparam("of_session"), position=_NEXT_POSITION, body=bindparam("text")
)


def _whole(method: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, Coroutine[Any, Any, None]]:
    """A write that is finished also when whoever asked for it is cancelled.

    Measured with aiosqlite 0.22 and SQLAlchemy 2.1: a transaction that is cancelled between two statements keeps the lock.
    """

    @wraps(method)
    async def write(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        await asyncio.shield(asyncio.create_task(method(*args, **kwargs)))

    return write


class Store:
    """Open with `await Store.open(url)`. Every method is one transaction; it is on disk when the method returns."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._writing = asyncio.Lock()
        self._writer: AsyncConnection | None = None

    @classmethod
    async def open(cls, url: str) -> Store:
        """Connect; make the tables, or bring older ones up to date. Raises ConfigError for a store of a newer version."""
        # Messages do not belong in a log, which is where a failing statement's values would end.
        engine = create_async_engine(url, hide_parameters=True)
        if engine.dialect.name == "sqlite":
            set_up_sqlite(engine)
        store = cls(engine)
        async with engine.begin() as connection:
            await connection.run_sync(schema.metadata.create_all)
            found = (await connection.execute(select(schema.schema_version.c.version))).scalar()
            if found is None:
                await connection.execute(insert(schema.schema_version).values(version=schema.VERSION))
            elif found < schema.VERSION:
                await connection.run_sync(migrate, found)
        if found is not None and found > schema.VERSION:
            await engine.dispose()
            raise ConfigError(
                f"the store is of version {found}, this portico reads {schema.VERSION}: install the portico that wrote it"
            )
        return store

    async def close(self) -> None:
        async with self._writing:
            if self._writer is not None:
                await self._writer.close()
        await self._engine.dispose()

    @asynccontextmanager
    async def _write(self) -> AsyncIterator[AsyncConnection]:
        # SQLite has one writer; waiting here is fair and costs nothing, waiting in its busy handler is neither.
        async with self._writing:
            if self._writer is None:
                # Kept: taking a connection from the pool and giving it back costs as much as a statement.
                self._writer = await self._engine.connect()
            async with self._writer.begin():
                yield self._writer

    # -- sessions ---------------------------------------------------------------------------------------------------

    @_whole
    async def create_session(self, record: SessionRecord, history: Sequence[str]) -> None:
        """Store a session with its first messages (JSON texts)."""
        values = {**asdict(record), "config": json.dumps(record.config)}
        async with self._write() as connection:
            await connection.execute(insert(schema.sessions).values(**values))
            await _append_messages(connection, record.id, history)

    async def session(self, session_id: str) -> SessionRecord | None:
        async with self._engine.connect() as connection:
            row = (await connection.execute(select(schema.sessions).where(schema.sessions.c.id == session_id))).mappings().first()
        return SessionRecord(**{**row, "config": json.loads(row["config"])}) if row else None

    async def session_ids(self, limit: int, after: Cursor | None = None) -> list[tuple[float, str]]:
        """(created_at, id) of sessions, newest first, those after the cursor only."""
        table = schema.sessions
        query = select(table.c.created_at, table.c.id).order_by(table.c.created_at.desc(), table.c.id.desc()).limit(limit)
        if after is not None:
            query = query.where(tuple_(table.c.created_at, table.c.id) < tuple_(*after))
        async with self._engine.connect() as connection:
            return [(row.created_at, row.id) for row in await connection.execute(query)]

    @_whole
    async def update_session(self, session_id: str, **values: Any) -> None:
        """Set columns of a session: `config` (JSON data), `secrets`, `native_id`."""
        if "config" in values:
            values["config"] = json.dumps(values["config"])
        async with self._write() as connection:
            await connection.execute(update(schema.sessions).where(schema.sessions.c.id == session_id).values(**values))

    @_whole
    async def delete_session(self, session_id: str) -> None:
        """Delete a session with its messages, runs and events."""
        async with self._write() as connection:
            for table in (schema.events, schema.runs):
                await connection.execute(delete(table).where(table.c.log_id == session_id))
            await connection.execute(delete(schema.messages).where(schema.messages.c.session_id == session_id))
            await connection.execute(delete(schema.sessions).where(schema.sessions.c.id == session_id))

    # -- messages ---------------------------------------------------------------------------------------------------

    @_whole
    async def append_messages(self, session_id: str, bodies: Sequence[str]) -> None:
        """Add messages (JSON texts) at the end of a session's history."""
        async with self._write() as connection:
            await _append_messages(connection, session_id, bodies)

    async def messages(self, session_id: str) -> list[str]:
        """A session's whole history as JSON texts, in order."""
        table = schema.messages
        query = select(table.c.body).where(table.c.session_id == session_id).order_by(table.c.position)
        async with self._engine.connect() as connection:
            return list((await connection.execute(query)).scalars())

    # -- runs and events --------------------------------------------------------------------------------------------

    @_whole
    async def start_run(self, record: RunRecord, history: Sequence[str] = ()) -> None:
        """Store a run that begins now, together with the messages that it begins with."""
        async with self._write() as connection:
            await connection.execute(_START_RUN, {**asdict(record), "started_at": time.time()})
            await _append_messages(connection, record.log_id, history)

    @_whole
    async def set_run(self, run_id: str, state: str, stop_reason: str | None = None) -> None:
        values = {"of_run": run_id, "state": state, "stop_reason": stop_reason}
        async with self._write() as connection:
            await connection.execute(_SET_RUN, {**values, "ended_at": time.time() if state == "ended" else None})

    @_whole
    async def end_run(self, run_id: str, stop_reason: str, log_id: str, first: int, last: int, body: bytes) -> None:
        """Mark a run as ended and store its last events, both or none."""
        row = {"log_id": log_id, "first": first, "last": last, "body": body}
        over = {"of_run": run_id, "state": "ended", "stop_reason": stop_reason, "ended_at": time.time()}
        async with self._write() as connection:
            await connection.execute(_APPEND_EVENTS, row)
            await connection.execute(_SET_RUN, over)

    @_whole
    async def answer_run(self, run_id: str, log_id: str, results: Sequence[str]) -> None:
        """Store the client's answers (JSON texts) and that the run is at work again: both or neither."""
        async with self._write() as connection:
            await _append_messages(connection, log_id, results)
            await connection.execute(update(schema.runs).where(schema.runs.c.id == run_id).values(state="running"))

    async def unfinished_runs(self) -> list[RunRecord]:
        """The runs that had not ended when the daemon did."""
        return await self._runs(schema.runs.c.state != "ended")

    async def last_run(self, log_id: str) -> RunRecord | None:
        found = await self._runs(schema.runs.c.log_id == log_id)
        return found[-1] if found else None

    async def _runs(self, condition: Any) -> list[RunRecord]:
        table = schema.runs
        columns = (table.c.id, table.c.log_id, table.c.state, table.c.stop_reason, table.c.first_seq)
        async with self._engine.connect() as connection:
            rows = await connection.execute(select(*columns).where(condition).order_by(table.c.started_at, table.c.first_seq))
            return [RunRecord(**row) for row in rows.mappings()]

    @_whole
    async def append_events(self, log_id: str, first: int, last: int, body: bytes) -> None:
        """Store the events first..last of a log, one JSON a line."""
        async with self._write() as connection:
            await connection.execute(_APPEND_EVENTS, {"log_id": log_id, "first": first, "last": last, "body": body})

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

    # -- executions -------------------------------------------------------------------------------------------------

    @_whole
    async def start_execution(self, run: RunRecord, key: str | None, digest: str) -> None:
        """Store an execution with its run, which begins now. The run's log_id is the execution's id."""
        values = {"id": run.log_id, "idempotency_key": key, "digest": digest, "created_at": time.time()}
        async with self._write() as connection:
            await connection.execute(insert(schema.executions).values(**values))
            await connection.execute(insert(schema.runs).values(**asdict(run), started_at=time.time()))

    async def execution(self, key: str) -> tuple[str, str] | None:
        """(id, digest of the request) of the execution with an idempotency key."""
        table = schema.executions
        async with self._engine.connect() as connection:
            row = (await connection.execute(select(table.c.id, table.c.digest).where(table.c.idempotency_key == key))).first()
        return (row.id, row.digest) if row else None

    @_whole
    async def forget_executions(self, before: float) -> None:
        """Delete executions made before a time (seconds since the epoch), with their events."""
        old = select(schema.executions.c.id).where(schema.executions.c.created_at < before)
        async with self._write() as connection:
            for table in (schema.events, schema.runs):
                await connection.execute(delete(table).where(table.c.log_id.in_(old)))
            await connection.execute(delete(schema.executions).where(schema.executions.c.created_at < before))

    # -- processes: the ledger of the spawner -------------------------------------------------------------------------

    @_whole
    async def started(self, marker: str, pid: int, created: float) -> None:
        async with self._write() as connection:
            await connection.execute(insert(schema.processes).values(marker=marker, pid=pid, started_at=created))

    @_whole
    async def ended(self, marker: str) -> None:
        async with self._write() as connection:
            await connection.execute(delete(schema.processes).where(schema.processes.c.marker == marker))

    async def processes(self) -> list[tuple[str, int, float]]:
        """(marker, pid, start time) of every process that is written down."""
        async with self._engine.connect() as connection:
            rows = await connection.execute(select(schema.processes))
            return [(row.marker, row.pid, row.started_at) for row in rows]


async def _append_messages(connection: AsyncConnection, session_id: str, bodies: Sequence[str]) -> None:
    if bodies:
        await connection.execute(_APPEND_MESSAGE, [{"of_session": session_id, "text": body} for body in bodies])
