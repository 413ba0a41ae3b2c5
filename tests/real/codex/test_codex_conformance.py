"""The conformance check, as a driver author runs it, on the codex driver with the real CLI."""

from __future__ import annotations

from pathlib import Path

from drivers.codex.driver import CodexDriver
from drivers.testing import Setup, ToolCases, examine
from tests.real.codex.conftest import Home

TOOLS = ToolCases({"shell": "[[run:echo hi]]"}, application="[[conformance]] go")


async def test_codex(home: Home, tmp_path: Path) -> None:
    setup = Setup(CodexDriver(), tmp_path, env=home.agent["env"], prompt="[[plain]] hello", tools=TOOLS)
    outcomes = [outcome async for outcome in examine(setup)]
    assert [outcome for outcome in outcomes if outcome.status != "passed"] == []
