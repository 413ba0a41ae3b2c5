"""Fixtures for the tests of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.nodes.cluster import NODE_KEY, Cluster, run_cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """The nodes `a` and `b`. New sessions are created at `b`."""
    async with run_cluster(tmp_path, "a", "b") as running:
        running.placement.creator = "b"
        yield running


@pytest.fixture(autouse=True)
def node_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node does not start without a key."""
    monkeypatch.setenv("PORTICO_NODE_KEYS", NODE_KEY)
