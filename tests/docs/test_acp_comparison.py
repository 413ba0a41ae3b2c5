"""The table that compares Portico with the vendors' ACP adapters: each row has a test in tests/real, and each of those a row."""

from __future__ import annotations

import json
from pathlib import Path

from tests.real.acp import test_beside_vendors as comparison

ROOT = Path(__file__).parents[2]
SECTION = "## Beside the vendors' adapters\n"


def section() -> str:
    return (ROOT / "docs" / "protocols" / "acp.md").read_text().split(SECTION)[1].split("\n## ")[0]


def test_each_row_has_a_test() -> None:
    lines = [line for line in section().splitlines() if line.startswith("| ")]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in lines[1:]]
    assert sorted(rows) == sorted(comparison.ROWS), "rows without a test, or tests without a row"
    assert all(hasattr(comparison, name) for name in comparison.ROWS.values())


def test_the_versions_are_those_that_are_tested() -> None:
    pinned = json.loads((ROOT / "tests" / "real" / "package.json").read_text())["dependencies"]
    for name in ("claude-agent-acp", "codex-acp"):
        assert f"`{name}` {pinned[f'@agentclientprotocol/{name}']}" in section()
