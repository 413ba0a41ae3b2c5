"""The turns of each key on all nodes of a cluster, which `limits.turns_per_key` allows so many of."""

from __future__ import annotations

import asyncio
import logging

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.errors import StoreAbandoned, StoreUnavailable, TooMany
from gateway.store.turn_slots import TurnSlotRepository

log = logging.getLogger(__name__)

RETRY = 1.0
"""Seconds after which a release is tried again that the store did not take."""


class SharedTurns:
    """Counts the turns of this node in the store. Without a limit nothing is counted.

    A turn of a node that has died counts until its heartbeat is too old (gateway/store/turn_slots.py).
    """

    def __init__(self, limit: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._limit, self._clock = limit, clock
        self._taken: set[str] = set()
        self._releases: dict[str, asyncio.Task[None]] = {}

    async def open(self, repository: TurnSlotRepository, node: str) -> None:
        """Forget what an earlier process of this node has left. Call it before the first turn."""
        self._repository, self._node = repository, node
        if self._limit:
            await repository.release_left_behind(node)

    async def close(self) -> None:
        """Wait for the releases that are under way. Raises nothing."""
        await asyncio.gather(*self._releases.values(), return_exceptions=True)

    async def take(self, log_id: str, owner: str | None) -> None:
        """As gateway/runs/admission_and_eviction.SharedTurns."""
        if not self._limit:
            return
        if (releasing := self._releases.get(log_id)) is not None:
            # It must not delete what is stored now.
            releasing.cancel()
            await asyncio.wait([releasing])
        # Also if the caller is cancelled while the store takes it.
        self._taken.add(log_id)
        others = await self._repository.take(log_id, owner, self._node, self._limit)
        if others is not None:
            self._taken.discard(log_id)
            raise TooMany(f"this key has {others} turns running, and no more may (limits.turns_per_key, of all nodes); try again")

    def release(self, log_id: str) -> None:
        if log_id in self._taken and log_id not in self._releases:
            self._taken.discard(log_id)
            self._releases[log_id] = task = asyncio.create_task(self._release(log_id))
            task.add_done_callback(lambda _: self._releases.pop(log_id, None))

    async def _release(self, log_id: str) -> None:
        while True:
            try:
                return await self._repository.release(log_id, self._node)
            except StoreAbandoned:
                return
            except StoreUnavailable as error:
                log.warning("a turn that has ended still counts for its key: %s", error)
            await self._clock.sleep(RETRY)
