"""The tests that docs/security.md names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_named_tests_exist() -> None:
    path = named = None
    missing = []
    for match in re.finditer(r"`([\w/]+\.py)?::(\w+|\*)`", (ROOT / "docs/security.md").read_text()):
        path, named = match[1] or path, match[2]
        assert path is not None
        file = ROOT / path
        text = file.read_text() if file.is_file() else ""
        if not re.search(r"def test_" if named == "*" else rf"def {named}\(", text):
            missing.append(f"{path}::{named}")
    assert named is not None
    assert missing == []
