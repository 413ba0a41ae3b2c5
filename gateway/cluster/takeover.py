"""Takes over the leases of nodes that have died: their runs that were at work end, and the leases are free."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.cluster.leases import HeldLease, Leases
from gateway.errors import NodeUnknown, SessionElsewhere, StoreUnavailable
from gateway.store import Store
from gateway.store.leases import Lease

log = logging.getLogger(__name__)

Item = TypeVar("Item")
AT_ONCE = 16
"""Leases that are taken over at the same time. Their writes are committed together."""
CloseRuns = Callable[[Store, str], Awaitable[int]]
"""Ends the runs of a log that were at work, in a fenced store, as a start after a kill does. Returns their number."""


class Takeover:
    """Looks for leases that have expired, of nodes that are silent. Call `look` every `interval` seconds.

    A lease is taken over once it was seen so for `observed` seconds, in looks that all reached the database in time: when the
    database was down, or this process was stopped, all leases have expired, and their nodes are about to renew them.
    """

    def __init__(
        self,
        store: Store,
        leases: Leases,
        close_runs: CloseRuns,
        *,
        silent: float,
        interval: float,
        observed: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store, self._leases, self._close_runs = store, leases, close_runs
        self._silent, self._interval, self._observed, self._clock = silent, interval, observed, clock
        self._seen: dict[tuple[str, int], float] = {}
        self._looked_at: float | None = None
        self._taken: dict[str, HeldLease] = {}

    def begin_again(self) -> None:
        """Observe anew: the database did not answer this node."""
        self._seen.clear()

    async def look(self) -> int:
        """Take over what is due. Returns how many leases that were. Raises StoreUnavailable."""
        began, before = self._clock.monotonic(), self._looked_at
        try:
            found = await self._store.leases.abandoned(self._silent)
        except BaseException:
            self.begin_again()
            raise
        self._looked_at = now = self._clock.monotonic()
        if before is None or now - before > 2 * self._interval or now - began > self._interval:
            self.begin_again()
        seen = {(lease.log_id, lease.token): lease for lease in found}
        self._seen = {key: self._seen.get(key, now) for key in seen}
        due = [lease for key, lease in seen.items() if now - self._seen[key] >= self._observed]
        # The nodes that are left begin at different ones.
        random.shuffle(due)
        try:
            # What an earlier look has not finished, before there is more of it.
            await _at_once(self._finish, list(self._taken.values()))
        finally:
            # A log whose runs cannot be closed does not hold up the others.
            taken = await _at_once(self._take, due)
        return taken

    async def _take(self, lease: Lease) -> bool:
        held = await self._leases.take_over(lease.log_id, lease.token)
        if held is None:
            return False
        log.warning("the node %s is silent, and its lease of %s has expired: it is taken over", lease.node, lease.log_id)
        self._taken[lease.log_id] = held
        await self._finish(held)
        return True

    async def find_own(self) -> None:
        """Find the leases that an earlier process of this node had, which the first heartbeat would release otherwise."""
        self._leases.unrecovered.update(lease.log_id for lease in await self._store.leases.unreleased(self._leases.node))

    async def recover(self) -> int:
        """Close the runs of the leases that `find_own` has found, and of logs that never had a lease.

        Returns how many runs were at work. The earlier process has ended, or can write nothing: this one has the node's id.
        """
        closed = 0
        for log_id in [*self._leases.unrecovered, *await self._store.runs.unfinished_without_lease()]:
            try:
                held = await self._leases.hold(log_id)
            except (SessionElsewhere, NodeUnknown):
                # Of a log without a lease, which another node that starts has found too; or it was taken over just now.
                continue
            finally:
                self._leases.unrecovered.discard(log_id)
            held.in_use = held.ending = True
            self._taken[log_id] = held
            try:
                closed += await self._finish(held)
            except StoreUnavailable:
                raise
            except Exception:
                log.exception("the runs of %s cannot be closed; the next look for dead nodes tries again", log_id)
        return closed

    async def _finish(self, held: HeldLease) -> int:
        """Close the runs of a log, and release its lease. What fails is tried again at the next look."""
        if not held.held:
            self._taken.pop(held.log_id, None)
            return 0
        closed = await self._close_runs(self._store.fenced(held), held.log_id)
        await held.release()
        del self._taken[held.log_id]
        return closed


async def _at_once(work: Callable[[Item], Awaitable[int]], items: Sequence[Item]) -> int:
    """Do a work for each item, AT_ONCE at the same time, and return the sum. Where some fail the others are done nevertheless."""
    queue, errors = iter(items), list[Exception]()

    async def worker() -> int:
        done = 0
        for item in queue:
            try:
                done += await work(item)
            except Exception as error:
                errors.append(error)
        return done

    done = sum(await asyncio.gather(*(worker() for _ in range(min(AT_ONCE, len(items))))))
    if errors:
        raise errors[0]
    return done
