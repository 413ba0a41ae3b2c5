"""Every requirement of the protocol's official test kit, and of acpx, with the real claude: over `portico acp claude` and over
the WebSocket of a daemon. All requirements of a transport share one gateway; each session has its own CLI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.gateway.protocols.acp.core_profile import ALL_REQUIREMENTS
from tests.real.acp.mirror import mirror
from tests.real.conftest import Home, make_home
from tests.real.processes import tear_down
from tests.support.acp_client import Client, on_stdio, on_websocket
from tests.support.daemon import KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def _by_stdio(home: Home) -> AsyncIterator[Client]:
    async with on_stdio(home.base, "claude", settings=home.config(), env=home.daemon_env()) as (client, process):
        yield client
        assert process.stdin is not None
        # SHUTDOWN-001: the process ends when its input ends.
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 30) == 0


@asynccontextmanager
async def _by_websocket(home: Home) -> AsyncIterator[Client]:
    daemon = await home.daemon()
    async with on_websocket(daemon.url, "claude", KEY) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[_by_stdio, _by_websocket], ids=["stdio", "websocket"])
async def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, claude_program: Path
) -> AsyncIterator[Client]:
    async with mirror() as model:
        home = make_home(tmp_path_factory.mktemp("requirements"), claude_program, model.url)
        async with request.param(home) as found:
            await found.initialize()
            yield found
        await tear_down(home.path, home.daemons)
        assert all(request.headers["user-agent"].startswith("claude-cli/") for request in model.requests)
        assert len(model.bodies("mirror")) > len(ALL_REQUIREMENTS) / 2


@pytest.mark.parametrize("name", ALL_REQUIREMENTS)
async def test_requirement(client: Client, name: str) -> None:
    await ALL_REQUIREMENTS[name](client)
