"""The tests that docs/security.md and docs/who-decides.md name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["security.md", "who-decides.md"])
def test_named_tests_exist(page: str) -> None:
    path = named = None
    missing = []
    for match in re.finditer(r"`([\w/]+\.py)?::(\w+|\*)`", (ROOT / "docs" / page).read_text()):
        path, named = match[1] or path, match[2]
        assert path is not None
        file = ROOT / path
        text = file.read_text() if file.is_file() else ""
        if not re.search(r"def test_" if named == "*" else rf"def {named}\(", text):
            missing.append(f"{path}::{named}")
    assert named is not None
    assert missing == []


def test_each_step_and_exception_names_a_test() -> None:
    rows = re.findall(r"^\| (?!who |\| who|call |---)(.*) \|$", (ROOT / "docs" / "who-decides.md").read_text(), re.MULTILINE)
    assert len(rows) > 15
    assert [row for row in rows if not re.search(r"`tests/[\w/]+\.py::", row)] == []
