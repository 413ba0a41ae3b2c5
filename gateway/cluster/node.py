"""Node: what a daemon does as one of a cluster: it reports heartbeats, renews its leases, and takes over those of dead nodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.cluster.leases import Leases
from gateway.cluster.node_directory import NodeDirectory
from gateway.cluster.takeover import Takeover
from gateway.errors import StoreFull, StoreUnavailable
from gateway.store import Store
from gateway.store.backend import NodeIdTaken
from gateway.store.nodes import NodeReport

log = logging.getLogger(__name__)

DAY = 86400.0
UNUSED = 5.0
"""Seconds after which a session that is not used is free for any node."""
HEARTBEAT = "the heartbeat of this node"


class NodeDaemon(Protocol):
    """What a node needs of the daemon that it is a part of."""

    def report(self) -> NodeReport:
        """What the node reports about itself with each heartbeat."""

    async def close_runs(self, store: Store, log_id: str) -> int:
        """End the runs of a log that were at work, in a fenced store, as a start after a kill does. Return their number."""

    async def tidy(self) -> None:
        """Release what is not used; on a node that is drained, end the agents of idle sessions first. As often as heartbeats."""

    async def sweep(self) -> None:
        """Remove what sessions have left on this machine that are not here any more."""

    def end_for_good(self) -> None:
        """End: another daemon has got the id of this node, while this one was stopped or cut off from the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Seconds. A lease lasts `lease` from its renewal, which each heartbeat is; a node is silent after `silent` without one.

    After a failure of the database the heartbeat is tried again every `retry`. Leases of dead nodes are looked for every
    `takeover`, and taken over after they were observed for `observed`. Folders of sessions that other nodes have by now are
    looked for every `sweep`.
    """

    lease: float = 10.0
    heartbeat: float = 3.0
    retry: float = 1.0
    silent: float = 10.0
    takeover: float = 2.0
    observed: float = 4.0
    sweep: float = 600.0


class Node:
    """`await start()` before the first request, `await stop()` when all runs have ended."""

    def __init__(
        self,
        store: Store,
        daemon: NodeDaemon,
        intervals: Intervals | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.intervals = of = intervals or Intervals()
        self._store, self.daemon, self._clock = store, daemon, clock
        self.directory = NodeDirectory(daemon.report, of.silent, clock, store.nodes.all)
        self.id = self.directory.node
        self.leases = Leases(store, self.directory, of.lease, clock)
        self.takeover = Takeover(
            store, self.leases, daemon.close_runs, silent=of.silent, interval=of.takeover, observed=of.observed, clock=clock
        )
        self._works: list[asyncio.Task[None]] = []

    async def start(self) -> int:
        """Report this node, and recover what its earlier process has left. Returns how many runs were at work then."""
        await self.takeover.find_own()
        await self._store.nodes.start(self.daemon.report(), DAY)
        await self.beat()
        of = self.intervals
        # The recovery may take longer than a lease lasts.
        beating = asyncio.create_task(self._repeated(self.beat, of.heartbeat, of.retry, HEARTBEAT))
        try:
            return await self.takeover.recover()
        finally:
            beating.cancel()
            await asyncio.wait([beating])

    def repeat(self) -> None:
        """Do from now on what a node does again and again."""
        of = self.intervals
        works = [
            self._repeated(self.beat, of.heartbeat, of.retry, HEARTBEAT),
            self._repeated(self.takeover.look, of.takeover, of.takeover, "the search for dead nodes"),
            # Not after the heartbeat in one task: it waits for the ends of agents where the node is drained.
            self._repeated(self.daemon.tidy, of.heartbeat, of.retry, "the release of what is not used"),
            self._repeated(self.daemon.sweep, of.sweep, of.sweep, "the removal of what sessions have left here"),
        ]
        self._works = [asyncio.create_task(work) for work in works]

    async def beat(self) -> None:
        """Report a heartbeat, and renew the leases. Raises StoreUnavailable, NodeIdTaken."""
        since = self._clock.monotonic()
        try:
            # A heartbeat that the store takes later shows nodes that were silent as long as this one.
            async with self._clock.timeout(self.intervals.lease):
                tokens, records = await self._store.nodes.beat(self.daemon.report(), self.intervals.lease)
        except NodeIdTaken as error:
            log.error("this node ends: %s", error)
            self.directory.draining = True
            self.daemon.end_for_good()
            raise
        except BaseException as error:
            self.takeover.begin_again()
            if isinstance(error, StoreFull):
                await self._beat_without_leases()
            raise
        self.directory.update(records)
        await self.leases.renewed(tokens, since)

    async def _beat_without_leases(self) -> None:
        """Report that this node runs, although its leases cannot be renewed: another one with more luck takes nothing over."""
        try:
            await self._store.nodes.note_alive(self.id)
            self.directory.update(await self._store.nodes.all())
        except StoreUnavailable as error:
            log.warning("this node cannot report that it runs: %s", error)

    async def stop(self) -> None:
        """Release all leases, and report nothing more: other nodes may take what this one had."""
        for work in self._works:
            work.cancel()
        for work in self._works:
            with suppress(asyncio.CancelledError):
                await work
        if not self._store.abandoned:
            await self.leases.release(*self.leases.all)
            await self._store.nodes.remove(self.id)

    async def _repeated(self, work: Callable[[], Awaitable[object]], seconds: float, retry: float, what: str) -> None:
        failing = False
        while True:
            await self._clock.sleep(retry if failing else seconds)
            try:
                await work()
                failing = False
            except Exception as error:
                if self._store.abandoned:
                    # For good: the daemon ends.
                    return
                log.error("%s has failed; trying again in %g s: %s", what, retry, error, exc_info=not failing)
                failing = True
