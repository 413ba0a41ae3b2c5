"""The conformance check, as a driver author runs it, on the drivers of the real CLIs."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivers import driver_registry
from drivers.testing import Setup, ToolCases, examine
from tests.real.real_cli import open_cli

SKIPPED = {"gemini": {"native session", "application tool"}}
"""gemini damages a session that is loaded in the minute of its creation. Its application-side tools need the MCP server."""


@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
async def test_driver(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "examined"
    folder.mkdir()
    async with open_cli(name, tmp_path) as cli:
        tools = ToolCases({cli.shell: "[[run:echo hi]]"}, application=None if name in SKIPPED else "[[conformance]] go")
        setup = Setup(driver_registry.load()[name], folder, env=cli.env, prompt="[[plain]] hello", tools=tools)
        outcomes = [outcome async for outcome in examine(setup)]
    assert [outcome for outcome in outcomes if outcome.status == "failed"] == []
    assert {outcome.check for outcome in outcomes if outcome.status == "skipped"} <= SKIPPED.get(name, set())
