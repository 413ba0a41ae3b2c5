"""Queries about what the agents of sessions have used: the sum over the turns of each. They are parts of other transactions."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, bindparam, select, update

from drivers.contract.events import Usage
from gateway.store import schema
from gateway.store.prepared import PreparedStatement, prepared_insert

_COLUMNS = tuple(name for name in Usage.model_fields if name != "kind")
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
