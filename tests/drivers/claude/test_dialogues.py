"""The claude codec in dialogues that no recording has; tests/drivers/claude/dialogues.py describes their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drivers.claude.dialogues import HERE, read, replay


@pytest.mark.parametrize("path", sorted(HERE.glob("*.jsonl")), ids=lambda path: path.stem)
def test_dialogue(path: Path) -> None:
    records = read(path)
    assert replay(records) == records, records[0]["shows"]
