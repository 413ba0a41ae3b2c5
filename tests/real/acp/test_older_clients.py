"""Older clients of the protocol, as they were published, on the real claude."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conftest import write_config
from tests.model_server.serving import ModelServer
from tests.real.acp.mirror import mirror
from tests.real.acp.programs import PACKAGES, installed, node, run_program
from tests.real.conftest import Home

SCRIPT = Path(__file__).with_name("older_client.mjs")


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with mirror() as server:
        yield server


async def test_the_first_client_sets_the_model(home: Home, model: ModelServer) -> None:
    """`setSessionModel` of 0.4.5, whose method is the one of modes."""
    module = installed(PACKAGES / "acp-sdk-0" / "dist" / "acp.js")
    command = [sys.executable, "-m", "gateway", "acp", "--config", str(write_config(home.base, home.config())), "claude"]
    out = await run_program(node(), SCRIPT, module, "haiku", *command, folder=home.work)
    assert "text: hello\n" in out
    assert out.rstrip().endswith("stopped: end_turn")
    assert "haiku" in model.bodies("mirror")[-1]["model"]
