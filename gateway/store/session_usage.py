"""Queries about what the agents of sessions have used: the sum over the turns of each. They are parts of other transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drivers.contract.events import Usage
from gateway.store.sql import Connection, insert

_COLUMNS = tuple(name for name in Usage.model_fields if name != "kind")
_SUMS = ", ".join(f"{name} = session_usage.{name} + excluded.{name}" for name in _COLUMNS)
_ADD = f"{insert('session_usage', ('session_id', *_COLUMNS))} ON CONFLICT (session_id) DO UPDATE SET {_SUMS}"
_OF_SESSIONS = f"SELECT session_id, {', '.join(_COLUMNS)} FROM session_usage WHERE session_id {{in_ids}}"


def usage_of_sessions(connection: Connection, session_ids: Sequence[str]) -> dict[str, Usage]:
    """Returns what sessions have used in all turns, by their ids. Those that have reported nothing are omitted."""
    rows = connection.execute(_OF_SESSIONS, {"ids": list(session_ids)})
    return {session_id: _usage(dict(zip(_COLUMNS, values, strict=True))) for session_id, *values in rows}


def add_usage(connection: Connection, session_id: str, usage: Usage) -> None:
    """Adds what a turn has used, within a transaction."""
    connection.execute(_ADD, {"session_id": session_id, **{name: getattr(usage, name) or 0 for name in _COLUMNS}})


def _usage(values: dict[str, Any]) -> Usage:
    return Usage(**{**values, "cost_usd": round(values["cost_usd"], 9) or None})
