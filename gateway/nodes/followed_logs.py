"""Logs that this node only reads: their events come from the store, where the node that has them writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol
from weakref import WeakKeyDictionary

from gateway.nodes.leases import HeldLease
from gateway.store import Store


class FollowedLog(Protocol):
    """A log with readers on this node. `last` is the number of the last event that they can get."""

    @property
    def log_id(self) -> str: ...

    @property
    def last(self) -> int: ...

    def advance(self, last: int) -> None:
        """The store has the events up to this number."""

    def close_deleted(self) -> None:
        """The log was deleted."""

    def close(self) -> None:
        """Nothing more comes."""


class FollowedLogs:
    """Tells logs what the store has of them, as long as somebody else refers to them. Not those that this node writes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._logs: WeakKeyDictionary[FollowedLog, HeldLease | None] = WeakKeyDictionary()
        self._ids = set[str]()
        """The ids of the logs that are read here, and of others that were added since the last poll of all.

        Not those whose lease is held again: each commit of this node to them would interrupt the event loop for nothing.
        """

    def add(self, log: FollowedLog, lease: HeldLease | None = None) -> None:
        """Follow a log from now on, while its `lease`, if it is given, is not held.

        Call it again right before each release of the lease: a poll between the two would take its notifications for needless.
        """
        self._logs[log] = lease
        self._ids.add(log.log_id)

    def has_any(self, log_ids: Iterable[str]) -> bool:
        """Whether one of these logs may be followed. Threads may ask."""
        return any(map(self._ids.__contains__, log_ids))

    async def poll(self, log_ids: Iterable[str] | None = None) -> None:
        """Look for new events of all logs, or of those with these ids."""
        wanted = None if log_ids is None else set(log_ids)
        if wanted is None:
            self._ids = {log.log_id for log in self._read_here()}
        logs = [log for log in self._read_here() if wanted is None or log.log_id in wanted]
        if not logs:
            return
        last = await self._store.events.last_of(sorted({log.log_id for log in logs}))
        # Of a log that is written here by now, the store may have more than its readers may see.
        for log in self._read_here():
            if log not in logs:
                continue
            if log.log_id not in last:
                del self._logs[log]
                log.close_deleted()
            elif last[log.log_id] > log.last:
                log.advance(last[log.log_id])

    def close(self) -> None:
        """End the readers of all logs, because the daemon shuts down. They can go on at another node."""
        for log in self._read_here():
            log.close()

    def _read_here(self) -> list[FollowedLog]:
        return [log for log, lease in list(self._logs.items()) if lease is None or not lease.held]
