"""The behaviours that the real CLIs have in common: each test is a row of the table, each CLI a column.

The tests of a module share one daemon for each CLI. A release of a CLI is tested by `make matrix` with some of the rows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.real.real_cli import CLIS, RealCli, open_cli


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(CLIS))
async def shared_cli(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealCli]:
    async with open_cli(request.param, tmp_path_factory.mktemp(request.param)) as cli:
        yield cli


@pytest_asyncio.fixture(loop_scope="module")
async def cli(shared_cli: RealCli) -> AsyncIterator[RealCli]:
    """A CLI behind a daemon, without a session and with an empty working folder."""
    yield shared_cli
    await shared_cli.clean()
