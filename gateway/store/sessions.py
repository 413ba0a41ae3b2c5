"""Queries about sessions: create, read, change, delete, and list them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from gateway.errors import too_many_sessions
from gateway.store.database import Database
from gateway.store.deletion import find_part
from gateway.store.failures import failure_reasons
from gateway.store.idempotency_keys import insert_key
from gateway.store.lease_checks import delete_lease
from gateway.store.messages import copy_messages, insert_messages
from gateway.store.queued_messages import queued_counts
from gateway.store.rows import Cursor, KeyRecord, MessageRow, RunRecord, SessionDetails, SessionListRow, SessionRecord
from gateway.store.runs import insert_run, last_runs
from gateway.store.session_usage import usage_of_sessions
from gateway.store.shared_values import LIMITS, set_value
from gateway.store.sql import Connection, Parameters, assignments, columns, equals, insert

UNLOCKED_SESSIONS = 1000
"""A key that has so many sessions fewer than it may have gets one more without a lock: so many are not created at one time."""
_TABLES_OF_SESSIONS = ("failures", "session_usage", "compactions", "session_metadata", "responses", "queued_messages")
"""Those with rows of a session, besides its events, runs and messages."""
_DELETED = """
SELECT session_id FROM histories WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.id = histories.session_id)
"""
_PARTS = (
    # The last first: what a reader still finds has no gaps.
    (
        "SELECT log_id, first, {size}(body) FROM events WHERE log_id = :session_id ORDER BY first DESC",
        ["log_id", "first", "size"],
        "DELETE FROM events WHERE log_id = :log_id AND first = :first",
    ),
    (
        # The index of SQLite takes 2 ms for 16 KiB of words.
        "SELECT number, {size}(body) + 256 * {size}(words) FROM messages WHERE session_id = :session_id ORDER BY position DESC",
        ["number", "size"],
        "DELETE FROM messages WHERE number = :number",
    ),
)
_USED_AT = "coalesce((SELECT max(coalesce(ended_at, started_at)) FROM runs WHERE log_id = sessions.id), created_at)"
"""When a run of the session began or ended last, or when the session was created."""
# Messages are stored with their role first.
_LIST_ROWS = f"""
SELECT id, config, created_at, {_USED_AT} AS used_at,
    (SELECT coalesce(chosen_title, title) FROM session_metadata WHERE session_id = sessions.id) AS title,
    (
        SELECT body FROM messages WHERE session_id = sessions.id AND body LIKE '{{"role":"user"%' ORDER BY position LIMIT 1
    ) AS first_user_message
FROM sessions
"""
_LAST_EVENTS = """
SELECT id, (SELECT last FROM events WHERE log_id = sessions.id ORDER BY first DESC LIMIT 1) FROM sessions WHERE id {in_ids}
"""
"""The number of the last event of each session, by the primary key of the events."""
_UNUSED = f"""
SELECT id FROM sessions WHERE {_USED_AT} < :time
AND NOT EXISTS (SELECT 1 FROM runs WHERE log_id = sessions.id AND state != 'ended')
AND id NOT IN (SELECT session_id FROM queued_messages) ORDER BY created_at
"""
_STATES = {
    "idle": "id NOT IN (SELECT log_id FROM runs WHERE state != 'ended')",
    "running": "id IN (SELECT log_id FROM runs WHERE state = 'running')",
    "waiting": "id IN (SELECT log_id FROM runs WHERE state = 'waiting')",
}


class SessionRepository:
    """Sessions by id, and pages of them, newest first."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        record: SessionRecord,
        history: Sequence[MessageRow],
        run: RunRecord | None = None,
        key: KeyRecord | None = None,
        *,
        copied: tuple[str, int] | None = None,
        limit: int = 0,
    ) -> None:
        """Stores a session with its first messages, the run that waits for their answers, and the request's key.

        `copied` is the id of another session, and how many of its messages come before them. `limit` is how many sessions its
        owner may have, 0 for any number. Raises TooMany for one more.
        """
        values = {**asdict(record), "config": json.dumps(record.config)}

        def transaction(connection: Connection) -> None:
            if limit:
                _require_fewer(connection, record.owner, limit)
            connection.execute(insert("sessions", values), values)
            connection.execute("INSERT INTO histories (session_id) VALUES (:id)", values)
            if copied is not None:
                copy_messages(connection, record.id, *copied)
            insert_messages(connection, record.id, history)
            if run is not None:
                insert_run(connection, run)
            if key is not None:
                insert_key(connection, key)

        await self._database.write(transaction)

    async def get(self, session_id: str) -> SessionRecord | None:
        """Returns a session, None if there is none of that id."""
        query = f"SELECT {columns(SessionRecord)} FROM sessions WHERE id = :id"
        row = await self._database.read(lambda connection: connection.first(query, {"id": session_id}))
        return _record(row) if row else None

    async def of_conversation(self, digest: bytes) -> str | None:
        """Returns the id of the newest session that has answered this conversation last, None if none has."""
        query = "SELECT id FROM sessions WHERE conversation = :digest ORDER BY created_at DESC LIMIT 1"
        return await self._database.read(lambda connection: connection.value(query, {"digest": digest}))

    async def some(self, session_ids: Sequence[str]) -> list[SessionRecord]:
        """Returns the sessions with these ids, in any order. Those that do not exist are omitted."""
        query, values = f"SELECT {columns(SessionRecord)} FROM sessions WHERE id {{in_ids}}", {"ids": list(session_ids)}
        return await self._database.read(lambda connection: [_record(row) for row in connection.execute(query, values)])

    async def page(self, limit: int, after: Cursor | None = None, owner: str | None = None) -> list[SessionRecord]:
        """Returns sessions, newest first: those behind the cursor, and of this owner only if one is given."""
        return [record for record, _ in await self.filtered(limit, after, owner)]

    async def filtered(
        self,
        limit: int,
        after: Cursor | None = None,
        owner: str | None = None,
        *,
        agent: str | None = None,
        state: Literal["idle", "running", "waiting"] | None = None,
        by_activity: bool = False,
    ) -> list[tuple[SessionRecord, Cursor]]:
        """Returns sessions with the cursor behind each, newest first, as `page`; of this agent and in this state only.

        With `by_activity` the first is the one in which a run began or ended last.
        """
        ordered_by = _USED_AT if by_activity else "created_at"
        query = f"SELECT {columns(SessionRecord)}, {ordered_by} AS ordered_by FROM sessions"
        query = f"{query} {_where(ordered_by, after, owner, agent, state)} ORDER BY ordered_by DESC, id DESC LIMIT :limit"
        values = _values(limit, after, owner, agent)

        def read(connection: Connection) -> list[tuple[SessionRecord, Cursor]]:
            return [(_record(row), (at, row[0])) for *row, at in connection.execute(query, values)]

        return await self._database.read(read)

    async def page_of_agent(self, agent: str, owner: str | None, limit: int, after: Cursor | None = None) -> list[SessionListRow]:
        """Returns rows for a list of one agent's sessions, newest first; of this owner only if one is given."""
        query = f"{_LIST_ROWS} {_where('created_at', after, owner, agent)} ORDER BY created_at DESC, id DESC LIMIT :limit"
        values = _values(limit, after, owner, agent)
        return await self._database.read(lambda connection: [_list_row(row) for row in connection.execute(query, values)])

    async def details(self, session_ids: Sequence[str]) -> dict[str, SessionDetails]:
        """Returns what a list shows of these sessions, by id. Sessions that do not exist are omitted."""
        query, ids = f"{_LIST_ROWS} WHERE id {{in_ids}}", {"ids": list(session_ids)}

        def details(connection: Connection) -> dict[str, SessionDetails]:
            rows = [_list_row(row) for row in connection.execute(query, ids)]
            runs, usage = last_runs(connection, session_ids), usage_of_sessions(connection, session_ids)
            last = {session_id: seq for session_id, seq in connection.execute(_LAST_EVENTS, ids)}
            failed = {run.id for run in runs.values() if run.stop_reason == "error"}
            errors, queued = failure_reasons(connection, sorted(failed)), queued_counts(connection, session_ids)

            def of(row: SessionListRow) -> SessionDetails:
                run = runs.get(row.id)
                error, waiting = errors.get(run.id) if run else None, queued.get(row.id, 0)
                return SessionDetails(row, run, error, usage.get(row.id), last.get(row.id) or 0, waiting)

            return {row.id: of(row) for row in rows}

        return await self._database.read(details)

    async def unused_since(self, time: float) -> list[str]:
        """Returns the ids of the sessions that were used last before a time: all runs have ended, and no message is queued."""
        return await self._database.read(lambda connection: connection.values(_UNUSED, {"time": time}))

    async def count(self, owner: str | None) -> int:
        """Returns how many sessions the key of this name has; None for the default keys."""
        return await self._database.read(lambda connection: _count(connection, owner))

    async def any_secrets(self) -> bytes | None:
        """Returns the encrypted secrets of some session; None if no session has any."""
        query = "SELECT secrets FROM sessions WHERE secrets IS NOT NULL LIMIT 1"
        return await self._database.read(lambda connection: connection.value(query))

    async def update(self, session_id: str, **values: Any) -> None:
        """Sets columns of a session: `config` (JSON data), `secrets`, `native_id`, `queue_stopped`, `conversation`."""
        if "config" in values:
            values["config"] = json.dumps(values["config"])
        statement = f"UPDATE sessions SET {assignments(values)} WHERE id = :id"
        await self._database.write(lambda connection: connection.execute(statement, {**values, "id": session_id}))

    async def delete(self, session_id: str) -> None:
        """Deletes a session; its audit stays. Nobody sees it any more; call `delete_part` for its events and messages."""
        values = {"id": session_id}

        def transaction(connection: Connection) -> None:
            connection.execute("DELETE FROM runs WHERE log_id = :id", values)
            for table in _TABLES_OF_SESSIONS:
                connection.execute(f"DELETE FROM {table} WHERE session_id = :id", values)
            connection.execute("DELETE FROM sessions WHERE id = :id", values)
            delete_lease(connection, session_id)

        await self._database.write(transaction)

    async def deleted(self) -> list[str]:
        """Returns the sessions that were deleted, and whose events and messages were not."""
        return await self._database.read(lambda connection: connection.values(_DELETED))

    async def delete_part(self, session_id: str) -> bool:
        """Deletes a part of the events and messages of a session that was deleted. Returns whether there are more."""
        return await self._database.write(lambda connection: _delete_part(connection, {"session_id": session_id}))


def _delete_part(connection: Connection, of_session: Parameters) -> bool:
    for query, names, statement in _PARTS:
        if part := find_part(connection, query, names, of_session):
            connection.execute_many(statement, part)
            return True
    connection.execute("DELETE FROM histories WHERE session_id = :session_id", of_session)
    return False


def _require_fewer(connection: Connection, owner: str | None, limit: int) -> None:
    """Raise TooMany if an owner has as many sessions as it may have, on whatever node they were created."""
    count = _count(connection, owner)
    if count >= limit - UNLOCKED_SESSIONS:
        # Another node that is about to store one waits, and counts this one.
        set_value(connection, LIMITS, "")
        count = _count(connection, owner)
    if count >= limit:
        raise too_many_sessions(limit)


def _count(connection: Connection, owner: str | None) -> int:
    query = f"SELECT count(*) FROM sessions WHERE {equals('owner', owner)}"
    return int(connection.value(query, {"owner": owner}))


def _where(key: str, after: Cursor | None, owner: str | None, agent: str | None, state: str | None = None) -> str:
    """Returns the WHERE of a page of sessions in the order of a key and their ids."""
    wanted = [_STATES[state]] if state is not None else []
    if owner is not None:
        wanted.append("owner = :owner")
    if agent is not None:
        wanted.append("agent = :agent")
    if after is not None:
        wanted.append(f"({key}, id) < (:after_key, :after_id)")
    return f"WHERE {' AND '.join(wanted)}" if wanted else ""


def _values(limit: int, after: Cursor | None, owner: str | None, agent: str | None) -> dict[str, Any]:
    after_key, after_id = after or (None, None)
    return {"limit": limit, "after_key": after_key, "after_id": after_id, "owner": owner, "agent": agent}


def _record(row: Sequence[Any]) -> SessionRecord:
    session_id, agent, config, *others = row
    return SessionRecord(session_id, agent, json.loads(config), *others)


def _list_row(row: Sequence[Any]) -> SessionListRow:
    session_id, config, *others = row
    return SessionListRow(session_id, json.loads(config), *others)
