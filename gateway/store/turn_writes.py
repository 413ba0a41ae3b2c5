"""What a turn writes, a statement each within a transaction; made once, since building a statement costs more than running it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import bindparam, func, insert, select, update

from gateway.store import schema
from gateway.store.core_engine import AsyncConnection
from gateway.store.records import AuditRecord, EventRow, KeyRecord, RunRecord

_START_RUN = insert(schema.runs)
_STOP_RUN = (
    update(schema.runs)
    .where(schema.runs.c.id == bindparam("of_run"))
    .values(
        state=bindparam("state"),
        stop_reason=bindparam("stop_reason"),
        ended_at=bindparam("ended_at"),
        waiting_since=bindparam("waiting_since"),
    )
)
_AT_WORK_AGAIN = update(schema.runs).where(schema.runs.c.id == bindparam("of_run")).values(state="running", waiting_since=None)
_APPEND_EVENTS = insert(schema.events)
_APPEND_AUDIT = insert(schema.audit)
_NEXT_POSITION = (
    select(func.coalesce(func.max(schema.messages.c.position) + 1, 0))
    .where(schema.messages.c.session_id == bindparam("of_session"))
    .scalar_subquery()
)
_APPEND_MESSAGE = insert(schema.messages).values(
    session_id=bindparam("of_session"), position=_NEXT_POSITION, body=bindparam("text")
)


async def start_run(connection: AsyncConnection, record: RunRecord) -> None:
    """A run that begins now."""
    await connection.execute(_START_RUN, {**asdict(record), "started_at": time.time()})


async def stop_run(
    connection: AsyncConnection, run_id: str, state: str, stop_reason: str | None, waiting_since: float | None
) -> None:
    """A run has ended, now, or waits."""
    stopped = {
        "of_run": run_id,
        "state": state,
        "stop_reason": stop_reason,
        "ended_at": time.time() if state == "ended" else None,
        "waiting_since": waiting_since,
    }
    await connection.execute(_STOP_RUN, stopped)


async def at_work_again(connection: AsyncConnection, run_id: str) -> None:
    """A run that waited does so no longer."""
    await connection.execute(_AT_WORK_AGAIN, {"of_run": run_id})


async def begin_turn(connection: AsyncConnection, begin: EventRow | None, key: KeyRecord | None) -> None:
    """The event that a turn begins with, and the key that it was asked for under."""
    if begin is not None:
        await append_events(connection, begin)
    if key is not None:
        await connection.execute(insert(schema.idempotency_keys).values(**asdict(key), created_at=time.time()))


async def append_events(connection: AsyncConnection, row: EventRow) -> None:
    """Some events, in a row of their own."""
    values = {"log_id": row.log_id, "first": row.first, "last": row.last, "body": row.body}
    await connection.execute(_APPEND_EVENTS, values)


async def append_messages(connection: AsyncConnection, session_id: str, bodies: Sequence[str]) -> None:
    """Messages (JSON texts), at the end of a session's history."""
    if bodies:
        await connection.execute(_APPEND_MESSAGE, [{"of_session": session_id, "text": body} for body in bodies])


async def append_audit(connection: AsyncConnection, records: Sequence[AuditRecord]) -> None:
    """Some decisions about tool calls."""
    await connection.execute(_APPEND_AUDIT, [asdict(record) for record in records])
