"""A repository of the user, and a gateway whose agents have worktrees of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from drivers.runtime.clock import SYSTEM_CLOCK
from tests.gateway.worktrees.repositories import make_repository, worktree_config
from tests.support.daemon import RunningGateway, run_gateway


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "project")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the user, whose `.gitconfig` the test writes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path


@pytest.fixture
async def running(tmp_path: Path, repository: Path, request: pytest.FixtureRequest) -> AsyncIterator[RunningGateway]:
    """The gateway. For a test that has `clock`, it has that clock."""
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else SYSTEM_CLOCK
    async with run_gateway(worktree_config(tmp_path, repository), clock) as running:
        yield running


@pytest.fixture
def client(running: RunningGateway) -> httpx.AsyncClient:
    return running.client
