"""Heartbeats, which renew the leases of a node: nothing that takes long delays them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.cluster.sessions import ClusterSessions
from gateway.cluster.takeover import Takeover
from gateway.store.nodes import NodeRepository
from tests.gateway.nodes import three_nodes
from tests.gateway.nodes.three_nodes import run_node
from tests.support.manual_clock import ManualClock

SECONDS = 3.0
INTERVALS = replace(three_nodes.INTERVALS, heartbeat=SECONDS)


class Heartbeats:
    """Counts the heartbeats that reach the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._queue, beat = asyncio.Queue[None](), NodeRepository.beat

        async def counted(repository: NodeRepository, *args: Any) -> Any:
            found = await beat(repository, *args)
            self._queue.put_nowait(None)
            return found

        monkeypatch.setattr(NodeRepository, "beat", counted)

    async def assert_regular(self, clock: ManualClock) -> None:
        """Assert that there is one after each interval."""
        while not self._queue.empty():
            self._queue.get_nowait()
        for _ in range(3):
            await clock.expire(SECONDS)
            async with asyncio.timeout(60):
                await self._queue.get()
            assert self._queue.empty()


async def test_they_go_on_while_agents_of_a_drained_node_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeats, waits = Heartbeats(monkeypatch), asyncio.Event()

    async def release_unused(*_: object) -> None:
        waits.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(ClusterSessions, "release_unused", release_unused)
    async with run_node(tmp_path, "a", INTERVALS) as node:
        # The heartbeat, and the release of what is not used.
        await node.clock.expire(SECONDS, by=2)
        await asyncio.wait_for(waits.wait(), 60)
        await node.clock.waited_for(SECONDS)
        await heartbeats.assert_regular(node.clock)


async def test_they_go_on_while_a_node_that_starts_closes_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeats = Heartbeats(monkeypatch)

    async def recover(takeover: Takeover) -> int:
        assert isinstance(takeover._clock, ManualClock)
        await heartbeats.assert_regular(takeover._clock)
        return 0

    monkeypatch.setattr(Takeover, "recover", recover)
    async with run_node(tmp_path, "a", INTERVALS):
        pass
