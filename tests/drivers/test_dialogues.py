"""The codecs of claude and codex in dialogues that no recording has; tests/drivers/dialogues.py describes their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drivers.dialogues import PATHS, read, replay


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_dialogue(path: Path) -> None:
    records = read(path)
    assert replay(path.parent.name, records) == records, records[0]["shows"]
