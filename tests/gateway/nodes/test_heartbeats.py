"""Heartbeats, which renew the leases of a node: nothing that takes long delays them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.nodes.takeover import Takeover
from gateway.sessions.registry import Sessions
from gateway.store.nodes import NodeRepository
from tests.gateway.nodes.three_nodes import INTERVALS, run_node

QUICK = replace(INTERVALS, heartbeat=0.02)


class Heartbeats:
    """Counts the heartbeats that reach the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._queue, beat = asyncio.Queue[None](), NodeRepository.beat

        async def counted(repository: NodeRepository, *args: Any) -> Any:
            found = await beat(repository, *args)
            self._queue.put_nowait(None)
            return found

        monkeypatch.setattr(NodeRepository, "beat", counted)

    async def wait(self, count: int) -> None:
        """Wait for this many more."""
        while not self._queue.empty():
            self._queue.get_nowait()
        async with asyncio.timeout(10):
            for _ in range(count):
                await self._queue.get()


async def test_they_go_on_while_agents_of_a_drained_node_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeats, waits = Heartbeats(monkeypatch), asyncio.Event()

    async def release_unused(*_: object) -> None:
        waits.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Sessions, "release_unused", release_unused)
    async with run_node(tmp_path, "a", QUICK):
        await asyncio.wait_for(waits.wait(), 10)
        await heartbeats.wait(3)


async def test_they_go_on_while_a_node_that_starts_closes_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeats = Heartbeats(monkeypatch)

    async def recover(_: Takeover) -> int:
        await heartbeats.wait(3)
        return 0

    monkeypatch.setattr(Takeover, "recover", recover)
    async with run_node(tmp_path, "a", QUICK):
        pass
