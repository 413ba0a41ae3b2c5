"""The conformance check, as a driver author runs it, on the claude driver with the real CLI."""

from __future__ import annotations

from pathlib import Path

from drivers.claude.driver import ClaudeDriver
from drivers.testing import Setup, ToolCases, examine
from tests.real.conftest import Home

TOOLS = ToolCases({"Bash": "[[run:echo hi]]"}, application="[[conformance]] go")


async def test_claude(home: Home, tmp_path: Path) -> None:
    setup = Setup(ClaudeDriver(), tmp_path, env=home.env, prompt="[[plain]] hello", tools=TOOLS)
    outcomes = [outcome async for outcome in examine(setup)]
    assert [outcome for outcome in outcomes if outcome.status != "passed"] == []
