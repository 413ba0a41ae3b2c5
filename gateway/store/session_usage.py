"""Queries about what the agents of sessions have used: the sum over the turns of each, and the turn at work. They are parts of
other transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drivers.contract.events import Usage
from gateway.store.rows import RunRecord
from gateway.store.sql import Connection, insert

_COLUMNS = tuple(name for name in Usage.model_fields if name != "kind")
_USAGE_BEGIN, _AWAITING_BEGIN = b'{"kind":"usage"', b'{"kind":"awaiting"'
"""How the JSON of these events begins."""
_SUMS = ", ".join(f"{name} = session_usage.{name} + excluded.{name}" for name in _COLUMNS)
_ADD = f"{insert('session_usage', ('session_id', *_COLUMNS))} ON CONFLICT (session_id) DO UPDATE SET {_SUMS}"
_OF_SESSIONS = f"SELECT session_id, {', '.join(_COLUMNS)} FROM session_usage WHERE session_id {{in_ids}}"


def usage_of_sessions(connection: Connection, session_ids: Sequence[str]) -> dict[str, Usage]:
    """Returns what sessions have used in all turns, by their ids. Those that have reported nothing are omitted."""
    rows = connection.execute(_OF_SESSIONS, {"ids": list(session_ids)})
    return {session_id: _usage(dict(zip(_COLUMNS, values, strict=True))) for session_id, *values in rows}


def usage_of_turns(connection: Connection, runs: Sequence[RunRecord]) -> dict[str, Usage]:
    """Returns what the turns at work of these runs have used by the events that are stored, by log. It reads the runs' events."""
    # A server sends only the rows that have these events.
    wanted = "" if connection.dialect == "sqlite" else "AND (body LIKE :usage OR body LIKE :awaiting)"
    query = f"""
        SELECT e.log_id, e.body FROM runs AS r JOIN events AS e ON e.log_id = r.log_id AND e.first >= r.first_seq
        WHERE r.id {{in_ids}} {wanted} ORDER BY e.log_id, e.first
    """
    patterns = {"usage": b"%" + _USAGE_BEGIN + b"%", "awaiting": b"%" + _AWAITING_BEGIN + b"%"}
    found: dict[str, Usage] = {}
    for log_id, body in connection.execute(query, {"ids": [run.id for run in runs], **patterns}):
        for line in body.split(b"\n"):
            if line.startswith(_AWAITING_BEGIN):
                # The end of a turn, with which its usage is stored.
                found.pop(log_id, None)
            elif line.startswith(_USAGE_BEGIN):
                usage, before = Usage.model_validate_json(line), found.get(log_id)
                found[log_id] = usage if before is None else before.plus(usage)
    return found


def add_usage(connection: Connection, session_id: str, usage: Usage) -> None:
    """Adds what a turn has used, within a transaction."""
    connection.execute(_ADD, {"session_id": session_id, **{name: getattr(usage, name) or 0 for name in _COLUMNS}})


def _usage(values: dict[str, Any]) -> Usage:
    return Usage(**{**values, "cost_usd": round(values["cost_usd"], 9) or None})
