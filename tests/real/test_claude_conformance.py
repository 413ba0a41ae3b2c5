"""The conformance check, as a driver author runs it, on the claude driver with the real CLI."""

from __future__ import annotations

from pathlib import Path

from drivers.claude.driver import ClaudeDriver
from drivers.testing import Setup, examine
from tests.real.conftest import Home


async def test_claude(home: Home, tmp_path: Path) -> None:
    setup = Setup(ClaudeDriver(), tmp_path, env=home.env, prompt="[[plain]] hello")
    outcomes = [outcome async for outcome in examine(setup)]
    assert [outcome for outcome in outcomes if outcome.status != "passed"] == []
