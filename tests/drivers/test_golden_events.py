"""The codecs over recorded output of the CLIs: the golden events, in which every line is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.drivers.claude import recordings as claude
from tests.drivers.codex import recordings as codex
from tests.drivers.gemini import recordings as gemini

TRANSCRIPTS: dict[tuple[Path, str], Any] = {
    **{(claude.GOLDEN, found.name): (claude.golden_lines, found) for found in claude.ALL},
    **{(codex.GOLDEN, found.name): (codex.golden_lines, found) for found in codex.ALL},
    **{(gemini.GOLDEN, found.name): (gemini.golden_lines, found) for found in gemini.ALL},
}


@pytest.mark.parametrize("folder", [claude.GOLDEN, codex.GOLDEN, gemini.GOLDEN], ids=lambda folder: folder.name)
def test_the_events_are_the_golden_ones(folder: Path) -> None:
    golden = {path.name.removesuffix(".events.jsonl"): path.read_bytes().splitlines() for path in folder.iterdir()}
    assert golden.keys() == {name for of, name in TRANSCRIPTS if of == folder}
    for name, lines in golden.items():
        golden_lines, transcript = TRANSCRIPTS[folder, name]
        assert golden_lines(transcript).splitlines() == lines, name
        assert not any(line.startswith(b'{"kind":"stdout"') for line in lines), f"{name}: every line is known"
