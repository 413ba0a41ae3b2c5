"""The leases that this node has: each is the right to write one log, until it is released or lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from enum import Enum
from weakref import WeakValueDictionary

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.cluster.node_directory import NodeDirectory
from gateway.errors import LeaseLost, LogDeleted, NodeUnknown, SessionElsewhere
from gateway.store import Store

log = logging.getLogger(__name__)


class LeaseState(Enum):
    """The state of a lease, as far as this process knows it."""

    HELD = "held"
    RELEASED = "released"
    """`hold` acquires it again if no other process had it meanwhile: what is known of the log is right then."""
    LOST = "lost"
    """Another process has it, or had it."""
    DELETED = "deleted"
    """It is lost because its log was deleted."""


class HeldLease:
    """The lease of one log, by which its writes are fenced (`Store.fenced`).

    `on_lost` is called once when it is lost. `in_use`: it is not released, even if no request has asked for it lately. `ending`:
    the runs that a dead node has left are being ended, and no request gets the lease before that.
    """

    def __init__(self, leases: Leases, log_id: str, token: int, since: float) -> None:
        self._leases, self.log_id, self.node, self.token = leases, log_id, leases.node, token
        self.since = self.used_at = since
        self.valid_until = since + leases.seconds
        self.state, self.in_use, self.ending = LeaseState.HELD, False, False
        self.on_lost: Callable[[], None] | None = None

    @property
    def held(self) -> bool:
        """Whether it was neither released nor lost."""
        return self.state is LeaseState.HELD

    @property
    def lost(self) -> bool:
        """Whether somebody else may write the log."""
        return self.state in (LeaseState.LOST, LeaseState.DELETED)

    @property
    def deleted(self) -> bool:
        """Whether it is lost because its log was deleted."""
        return self.state is LeaseState.DELETED

    @property
    def is_fresh(self) -> bool:
        """Whether it was renewed in time, so that no other node can have it. After a process was stopped, it was not."""
        return self.held and self._leases.clock.monotonic() < self.valid_until

    async def hold(self) -> None:
        """Acquire it again after a release. Raises LeaseLost where the log may have changed meanwhile, LogDeleted if it is."""
        if self.deleted:
            raise LogDeleted(self.log_id)
        if not self.held:
            await self._leases.hold_again(self)

    async def confirm(self) -> None:
        """Renew it if it has expired, before anything is done that only its holder may do. Raises LeaseLost, StoreUnavailable."""
        if not self.is_fresh:
            await self.hold()
            if not self.is_fresh:
                await self._leases.renew()
            if not self.held:
                raise LeaseLost(self.log_id)

    async def release(self) -> None:
        """Release it: any node may acquire it. Writes that were begun before are completed."""
        await self._leases.release(self)

    def lose(self) -> None:
        """Another node has it, or its log is deleted."""
        self._leases.lose(self)

    def end_with_log(self) -> None:
        """Its log was deleted, with the lease, by a write of this process. Call it before another write can fail for that."""
        self._leases.deleted(self)


class Leases:
    """The leases of this node, for `seconds` from their last renewal.

    They are valid here for as long from before the request for them was sent, whatever the clock of the database shows.
    """

    def __init__(self, store: Store, directory: NodeDirectory, seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store, self._directory = store, directory
        self.node, self.seconds, self.clock = directory.node, seconds, clock
        self._held: dict[str, HeldLease] = {}
        self._acquiring: dict[str, int] = {}
        self.unrecovered: set[str] = set()
        """Logs whose leases an earlier process of this node had: they are renewed until their runs are closed."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def all(self) -> list[HeldLease]:
        """The leases that are held."""
        return list(self._held.values())

    def get(self, log_id: str) -> HeldLease | None:
        """The lease of a log; None if this node does not hold it."""
        return self._held.get(log_id)

    async def hold(self, log_id: str, previous: HeldLease | None = None) -> HeldLease:
        """The lease of a log, which is acquired if this node does not hold it. Raises SessionElsewhere, NodeUnknown.

        It is `previous` if no other process had the lease since the release; otherwise the log may have changed. NodeUnknown is
        also for a log that this node has taken over and whose runs are not ended yet: the log changes without the caller.
        """
        async with self._locks.setdefault(log_id, asyncio.Lock()):
            held = self._held.get(log_id)
            if held is None:
                held = await self._acquire(log_id, previous)
            elif held.ending:
                raise NodeUnknown(f"{log_id!r} was on a node that has ended, and its run is being ended; send the request again")
            held.used_at = self.clock.monotonic()
            return held

    async def take_over(self, log_id: str, expected: int) -> HeldLease | None:
        """The lease of a log that has expired with this token; None if a node has it by now, or the log was deleted."""
        async with self._locks.setdefault(log_id, asyncio.Lock()):
            if log_id in self._held:
                return None
            since, found = self.clock.monotonic(), None
            with self._acquisition(log_id), suppress(LogDeleted):
                lease = await self._store.leases.acquire(log_id, self.node, self.seconds, expected)
                if lease.node == self.node and lease.token > expected:
                    found = self._held[log_id] = HeldLease(self, log_id, lease.token, since)
                    found.in_use = found.ending = True
                    self._directory.forget(log_id)
            return found

    async def hold_again(self, lease: HeldLease) -> None:
        """Acquire a lease that was released. Raises LeaseLost."""
        async with self._locks.setdefault(lease.log_id, asyncio.Lock()):
            if lease.held:
                return
            if lease.lost or lease.log_id in self._held:
                self.lose(lease)
                raise LeaseLost(lease.log_id)
            try:
                found = await self._acquire(lease.log_id, lease)
            except (SessionElsewhere, NodeUnknown) as error:
                raise LeaseLost(lease.log_id) from error
        if found is not lease:
            # Nobody uses the other one.
            await found.release()
            raise LeaseLost(lease.log_id)

    async def _acquire(self, log_id: str, previous: HeldLease | None) -> HeldLease:
        since = self.clock.monotonic()
        with self._acquisition(log_id):
            lease = await self._store.leases.acquire(log_id, self.node, self.seconds)
            if lease.node != self.node:
                if previous is not None:
                    self.lose(previous)
                raise await self._directory.elsewhere(lease.node, log_id)
            if previous is not None and not previous.lost and lease.token == previous.token + 1:
                previous.token, previous.since, previous.state = lease.token, since, LeaseState.HELD
                previous.valid_until = since + self.seconds
                found = previous
            else:
                if previous is not None:
                    self.lose(previous)
                found = HeldLease(self, log_id, lease.token, since)
            self._held[log_id] = found
            self._directory.forget(log_id)
            return found

    @asynccontextmanager
    async def creating(self, log_id: str) -> AsyncIterator[Store]:
        """Give the store for the write that creates a log. After the block this node holds the log's lease."""
        since = self.clock.monotonic()
        with self._acquisition(log_id):
            yield self._store.creating(log_id, self.node, self.seconds)
            self._held[log_id] = HeldLease(self, log_id, 1, since)

    async def renew(self) -> None:
        """Renew all leases at once, and find out which ones are lost. Raises StoreUnavailable."""
        since = self.clock.monotonic()
        await self.renewed(await self._store.leases.renew(self.node, self.seconds), since)

    async def renewed(self, tokens: Mapping[str, int], since: float) -> None:
        """These leases of this node, by log, were renewed by a request that was sent at `since`.

        The other leases that this process held by then are lost. A renewed lease that this process does not know was acquired
        for a request that was cancelled meanwhile: it is released, unless it is one of `unrecovered`.
        """
        for lease in self.all:
            if tokens.get(lease.log_id) == lease.token:
                lease.valid_until = max(lease.valid_until, since + self.seconds)
            elif lease.since < since and lease.log_id not in self._acquiring:
                log.warning("the lease of %s is lost: another node has taken it over", lease.log_id)
                self.lose(lease)
        known = {*self._held, *self._acquiring, *self.unrecovered}
        await self._store.leases.release([(key, token) for key, token in tokens.items() if key not in known])

    async def release(self, *leases: HeldLease) -> None:
        """Release leases: any node may acquire them. Writes that were begun before are completed."""
        found = [lease for lease in leases if lease.held]
        for lease in found:
            lease.state = LeaseState.RELEASED
            self._forget(lease)
        await self._store.leases.release([(lease.log_id, lease.token) for lease in found])

    def lose(self, lease: HeldLease) -> None:
        """A lease is another node's, or its log is deleted: nothing is written by it any more."""
        self._forget(lease)
        if not lease.lost:
            lease.state = LeaseState.LOST
            if lease.on_lost is not None:
                lease.on_lost()

    def deleted(self, lease: HeldLease) -> None:
        """The log of a lease was deleted, with the lease."""
        lease.on_lost = None
        self.lose(lease)
        lease.state = LeaseState.DELETED

    def _forget(self, lease: HeldLease) -> None:
        if self._held.get(lease.log_id) is lease:
            del self._held[lease.log_id]

    def _acquisition(self, log_id: str) -> _Acquisition:
        return _Acquisition(self._acquiring, log_id)


class _Acquisition:
    """Counts the acquisitions of a log's lease that are under way."""

    def __init__(self, counts: dict[str, int], log_id: str) -> None:
        self._counts, self._log_id = counts, log_id

    def __enter__(self) -> None:
        self._counts[self._log_id] = self._counts.get(self._log_id, 0) + 1

    def __exit__(self, *_: object) -> None:
        self._counts[self._log_id] -= 1
        if not self._counts[self._log_id]:
            del self._counts[self._log_id]
