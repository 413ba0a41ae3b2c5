"""Queries about sessions: create, read, change, delete, and list them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Select, bindparam, delete, exists, func, insert, select, tuple_, update

from gateway.errors import too_many_sessions
from gateway.store import schema
from gateway.store.database import Database
from gateway.store.failures import failure_reasons
from gateway.store.idempotency_keys import insert_key
from gateway.store.lease_checks import delete_lease
from gateway.store.messages import copy_messages, insert_messages
from gateway.store.notifications import notify_deleted
from gateway.store.rows import Cursor, KeyRecord, MessageRow, RunRecord, SessionDetails, SessionListRow, SessionRecord
from gateway.store.runs import insert_run, last_runs
from gateway.store.session_usage import usage_of_sessions, usage_of_turns
from gateway.store.shared_values import LIMITS, set_value

READS = 3
"""Times that a list of sessions at other nodes is read while turns of them end."""
UNLOCKED_SESSIONS = 1000
"""A key that has so many sessions fewer than it may have gets one more without a lock: so many are not created at one time."""


_DELETE = delete(schema.sessions).where(schema.sessions.c.id == bindparam("of_session")).returning(schema.sessions.c.owner)


class SessionRepository:
    """Sessions by id, and pages of them, newest first."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        record: SessionRecord,
        history: Sequence[str],
        run: RunRecord | None = None,
        key: KeyRecord | None = None,
        *,
        copied: tuple[str, int] | None = None,
        limit: int = 0,
    ) -> None:
        """Stores a session with its first messages (JSON texts), the run that waits for their answers, and the request's key.

        `copied` is the id of another session, and how many of its messages come before them. `limit` is how many sessions its
        owner may have, 0 for any number. Raises TooMany for one more.
        """
        values = {**asdict(record), "config": json.dumps(record.config)}

        def transaction(connection: Connection) -> None:
            if limit:
                _require_fewer(connection, record.owner, limit)
            connection.execute(insert(schema.sessions).values(**values))
            if copied is not None:
                copy_messages(connection, record.id, *copied)
            insert_messages(connection, record.id, [MessageRow(body) for body in history])
            if run is not None:
                insert_run(connection, run)
            if key is not None:
                insert_key(connection, key)

        await self._database.write(transaction)

    async def get(self, session_id: str) -> SessionRecord | None:
        """Returns a session, None if there is none of that id."""
        found = await self._records(select(schema.sessions).where(schema.sessions.c.id == session_id))
        return found[0] if found else None

    async def some(self, session_ids: Sequence[str]) -> list[SessionRecord]:
        """Returns the sessions with these ids, in any order. Those that do not exist are omitted."""
        return await self._records(select(schema.sessions).where(schema.sessions.c.id.in_(session_ids)))

    async def page(self, limit: int, after: Cursor | None = None, owner: str | None = None) -> list[SessionRecord]:
        """Returns sessions, newest first: those behind the cursor, and of this owner only if one is given."""
        return await self._records(_page(select(schema.sessions), limit, after, owner))

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
        table, runs = schema.sessions, schema.runs
        key = _used_at() if by_activity else table.c.created_at
        query = select(table, key.label("ordered_by"))
        if owner is not None:
            query = query.where(table.c.owner == owner)
        if agent is not None:
            query = query.where(table.c.agent == agent)
        if state is not None:
            at_work = select(runs.c.log_id).where(runs.c.state == state if state != "idle" else runs.c.state != "ended")
            query = query.where(table.c.id.not_in(at_work) if state == "idle" else table.c.id.in_(at_work))
        found = query.subquery()
        ordered = select(found).order_by(found.c.ordered_by.desc(), found.c.id.desc()).limit(limit)
        if after is not None:
            ordered = ordered.where(tuple_(found.c.ordered_by, found.c.id) < tuple_(*after))

        def read(connection: Connection) -> list[tuple[SessionRecord, Cursor]]:
            rows = [_with_config(row) for row in connection.execute(ordered).mappings()]
            at = [row.pop("ordered_by") for row in rows]
            return [(SessionRecord(**row), (number, row["id"])) for row, number in zip(rows, at, strict=True)]

        return await self._database.read(read)

    async def page_of_agent(self, agent: str, owner: str | None, limit: int, after: Cursor | None = None) -> list[SessionListRow]:
        """Returns rows for a list of one agent's sessions, newest first; of this owner only if one is given."""
        query = _page(_LIST_ROWS.where(schema.sessions.c.agent == agent), limit, after, owner)

        def rows(connection: Connection) -> list[SessionListRow]:
            return [SessionListRow(**_with_config(row)) for row in connection.execute(query).mappings()]

        return await self._database.read(rows)

    async def details(self, session_ids: Sequence[str], elsewhere: Collection[str] = ()) -> dict[str, SessionDetails]:
        """Returns what a list shows of these sessions, by id. Sessions that do not exist are omitted.

        The usage of those that are `elsewhere`, at other nodes, includes what the stored events have of the turn at work.
        """
        query = _LIST_ROWS.where(schema.sessions.c.id.in_(session_ids))

        def details(connection: Connection) -> dict[str, SessionDetails]:
            rows = [SessionListRow(**_with_config(row)) for row in connection.execute(query).mappings()]
            runs, usage = last_runs(connection, session_ids), usage_of_sessions(connection, session_ids)
            for _ in range(READS):
                at_work = [run for run in runs.values() if run.state == "running" and run.log_id in elsewhere]
                turns = usage_of_turns(connection, at_work) if at_work else {}
                if not turns:
                    break
                # Each statement has a state of its own: a turn that has ended meanwhile would count twice.
                again = last_runs(connection, session_ids)
                if all(again.get(run.log_id) == run for run in at_work):
                    usage = {**usage, **{key: usage[key].plus(turn) if key in usage else turn for key, turn in turns.items()}}
                    break
                runs, usage = again, usage_of_sessions(connection, session_ids)
            last = {row.id: row.last for row in connection.execute(_LAST_EVENTS.where(schema.sessions.c.id.in_(session_ids)))}
            failed = {run.id for run in runs.values() if run.stop_reason == "error"}
            errors = failure_reasons(connection, sorted(failed))

            def of(row: SessionListRow) -> SessionDetails:
                run = runs.get(row.id)
                return SessionDetails(row, run, errors.get(run.id) if run else None, usage.get(row.id), last.get(row.id) or 0)

            return {row.id: of(row) for row in rows}

        return await self._database.read(details)

    async def unused_since(self, time: float) -> list[str]:
        """Return the ids of the sessions without a run that has not ended, and which were used last before a time."""
        table, runs = schema.sessions, schema.runs
        running = exists().where(runs.c.log_id == table.c.id, runs.c.state != "ended")
        query = select(table.c.id).where(_used_at() < time, ~running).order_by(table.c.created_at)
        return await self._database.read(lambda connection: [str(row[0]) for row in connection.execute(query)])

    async def count(self, owner: str | None) -> int:
        """Returns how many sessions the key of this name has; None for the default keys."""
        query = select(func.count()).select_from(schema.sessions).where(schema.sessions.c.owner == owner)
        return await self._database.read(lambda connection: int(connection.execute(query).scalar_one()))

    async def any_secrets(self) -> bytes | None:
        """Returns the encrypted secrets of some session; None if no session has any."""
        secrets = schema.sessions.c.secrets
        query = select(secrets).where(secrets.is_not(None)).limit(1)
        return await self._database.read(lambda connection: connection.execute(query).scalar())

    async def update(self, session_id: str, **values: Any) -> None:
        """Sets columns of a session: `config` (JSON data), `secrets`, `native_id`."""
        if "config" in values:
            values["config"] = json.dumps(values["config"])
        statement = update(schema.sessions).where(schema.sessions.c.id == session_id).values(**values)
        await self._database.write(lambda connection: connection.execute(statement).close())

    async def delete(self, session_id: str) -> None:
        """Deletes a session with everything that belongs to it; its audit stays."""

        def transaction(connection: Connection) -> None:
            for table in (schema.events, schema.runs):
                connection.execute(delete(table).where(table.c.log_id == session_id))
            for table in _TABLES_OF_SESSIONS:
                connection.execute(delete(table).where(table.c.session_id == session_id))
            owners = connection.execute(_DELETE, {"of_session": session_id}).scalars().all()
            delete_lease(connection, session_id)
            for owner in owners:
                notify_deleted(connection, session_id, owner)

        await self._database.write(transaction)

    async def _records(self, query: Select[Any]) -> list[SessionRecord]:
        def records(connection: Connection) -> list[SessionRecord]:
            return [SessionRecord(**_with_config(row)) for row in connection.execute(query).mappings()]

        return await self._database.read(records)


_TABLES_OF_SESSIONS = (
    schema.failures,
    schema.session_usage,
    schema.compactions,
    schema.session_metadata,
    schema.responses,
    schema.messages,
)
"""Those with rows of a session, besides its events and runs."""


def _used_at() -> ColumnElement[float]:
    """When a run of the session began or ended last, or when the session was created."""
    table, runs = schema.sessions, schema.runs
    last = select(func.max(func.coalesce(runs.c.ended_at, runs.c.started_at))).where(runs.c.log_id == table.c.id)
    return func.coalesce(last.scalar_subquery(), table.c.created_at)


def _list_rows() -> Select[Any]:
    table, messages, known = schema.sessions, schema.messages, schema.session_metadata
    title = func.coalesce(known.c.chosen_title, known.c.title)
    # Messages are stored with their role first.
    user_messages = select(messages.c.body).where(messages.c.session_id == table.c.id, messages.c.body.like('{"role":"user"%'))
    return select(
        table.c.id,
        table.c.config,
        table.c.created_at,
        _used_at().label("used_at"),
        select(title).where(known.c.session_id == table.c.id).scalar_subquery().label("title"),
        user_messages.order_by(messages.c.position).limit(1).scalar_subquery().label("first_user_message"),
    )


_LIST_ROWS = _list_rows()


def _require_fewer(connection: Connection, owner: str | None, limit: int) -> None:
    """Raise TooMany if an owner has as many sessions as it may have, on whatever node they were created."""
    query = select(func.count()).select_from(schema.sessions).where(schema.sessions.c.owner == owner)
    count = int(connection.execute(query).scalar_one())
    if count >= limit - UNLOCKED_SESSIONS:
        # Another node that is about to store one waits, and counts this one.
        set_value(connection, LIMITS, "")
        count = int(connection.execute(query).scalar_one())
    if count >= limit:
        raise too_many_sessions(limit)


def _last_events() -> Select[tuple[str, int | None]]:
    table, events = schema.sessions, schema.events
    last = select(events.c.last).where(events.c.log_id == table.c.id).order_by(events.c.first.desc()).limit(1)
    return select(table.c.id, last.scalar_subquery().label("last"))


_LAST_EVENTS = _last_events()
"""The number of the last event of each session, by the primary key of the events."""


def _page(query: Select[Any], limit: int, after: Cursor | None, owner: str | None) -> Select[Any]:
    table = schema.sessions
    if owner is not None:
        query = query.where(table.c.owner == owner)
    if after is not None:
        query = query.where(tuple_(table.c.created_at, table.c.id) < tuple_(*after))
    return query.order_by(table.c.created_at.desc(), table.c.id.desc()).limit(limit)


def _with_config(row: Any) -> dict[str, Any]:
    return {**row, "config": json.loads(row["config"])}
