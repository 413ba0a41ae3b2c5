"""Limits of time of a store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreTimes:
    """Limits of time of a store, in seconds. All but `read` and `conflict_pause` are for PostgreSQL."""

    read: float = 5.0
    """How long a read is repeated whose connection is lost: the restart of a server takes one or two seconds."""
    conflict_pause: float = 0.02
    """Pause before a write is executed again that others were in the way of. It is twice as long each time, and a random part
    of that: two writers go on in turn."""
    lock: float = 10.0
    """How long a statement waits for a lock, as long as with SQLite."""
    answer: float = 10.0
    """Silence after which the server is asked whether it works on a statement. Locks are waited for no longer."""
    resolve: float = 10.0
    """How long the outcome of a commit without an answer is asked for: as long as SQLite waits for a lock."""
    resolve_pause: float = 0.1
    """Pause before the outcome is asked for again."""


STORE_TIMES = StoreTimes()
