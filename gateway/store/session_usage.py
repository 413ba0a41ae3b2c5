"""Queries about what the agents of sessions have used: the sum over the turns of each, and the turn at work. They are parts of
other transactions."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, and_, bindparam, or_, select, update

from drivers.contract.events import Usage
from gateway.store import schema
from gateway.store.prepared import PreparedStatement, prepared_insert
from gateway.store.rows import RunRecord

_COLUMNS = tuple(name for name in Usage.model_fields if name != "kind")
_USAGE_BEGIN, _AWAITING_BEGIN = b'{"kind":"usage"', b'{"kind":"awaiting"'
"""How the JSON of these events begins."""
_INSERT = prepared_insert(schema.session_usage, "session_id", *_COLUMNS)
_ADD = PreparedStatement(
    update(schema.session_usage)
    .where(schema.session_usage.c.session_id == bindparam("of_session"))
    .values({name: schema.session_usage.c[name] + bindparam(name) for name in _COLUMNS})
)


def usage_of_sessions(connection: Connection, session_ids: Sequence[str]) -> dict[str, Usage]:
    """Returns what sessions have used in all turns, by their ids. Those that have reported nothing are omitted."""
    table = schema.session_usage
    rows = connection.execute(select(table).where(table.c.session_id.in_(session_ids))).mappings()
    return {row["session_id"]: _usage(row) for row in rows}


def usage_of_turns(connection: Connection, runs: Sequence[RunRecord]) -> dict[str, Usage]:
    """Returns what the turns at work of these runs have used by the events that are stored, by log. It reads the runs' events."""
    table = schema.events.c
    of_runs = or_(*(and_(table.log_id == run.log_id, table.first >= run.first_seq) for run in runs))
    query = select(table.log_id, table.body).where(of_runs).order_by(table.log_id, table.first)
    if connection.dialect.name != "sqlite":
        # A server sends only the rows that have these events.
        query = query.where(or_(*(table.body.bool_op("LIKE")(b"%" + kind + b"%") for kind in (_USAGE_BEGIN, _AWAITING_BEGIN))))
    found: dict[str, Usage] = {}
    for row in connection.execute(query):
        for line in row.body.split(b"\n"):
            if line.startswith(_AWAITING_BEGIN):
                # The end of a turn, with which its usage is stored.
                found.pop(row.log_id, None)
            elif line.startswith(_USAGE_BEGIN):
                usage, before = Usage.model_validate_json(line), found.get(row.log_id)
                found[row.log_id] = usage if before is None else before.plus(usage)
    return found


def add_usage(connection: Connection, session_id: str, usage: Usage) -> None:
    """Adds what a turn has used, within a transaction."""
    values = {name: getattr(usage, name) or 0 for name in _COLUMNS}
    known = select(schema.session_usage.c.session_id).where(schema.session_usage.c.session_id == session_id)
    if connection.execute(known).first() is None:
        _INSERT.execute(connection, {"session_id": session_id, **values})
    else:
        _ADD.execute(connection, {"of_session": session_id, **values})


def _usage(row: RowMapping) -> Usage:
    values = {name: row[name] for name in _COLUMNS}
    return Usage(**{**values, "cost_usd": round(values["cost_usd"], 9) or None})
