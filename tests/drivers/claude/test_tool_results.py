"""What claude reports of a tool's result beside its text."""

from __future__ import annotations

from typing import Any

import pytest

from drivers.claude.tool_results import MAX_CHANGES, changes_of, exit_code_of
from drivers.contract.events import FileChange

LINES = [" one", "-two", "+TWO", " three", "\\ No newline at end of file"]


def report(*hunks: Any) -> dict[str, Any]:
    return {"filePath": "/w/a.txt", "oldString": "two", "newString": "TWO", "structuredPatch": list(hunks)}


def test_hunks_of_an_edit() -> None:
    found = changes_of(report({"oldStart": 3, "newStart": 4, "lines": LINES}, {"newStart": 0, "lines": ["-gone"]}))
    assert found == (
        FileChange(path="/w/a.txt", old_text="one\ntwo\nthree", new_text="one\nTWO\nthree", line=4),
        FileChange(path="/w/a.txt", old_text="gone", new_text="", line=1),
    )


@pytest.mark.parametrize(
    "unknown",
    [
        None, "Error: no", [], {}, {"filePath": 1, "structuredPatch": []}, {"filePath": "/a"}, report(),
        report("text"), report({"lines": "text"}), report({"lines": [1]}),
        report({"newStart": 1, "lines": ["+" + "x" * MAX_CHANGES, "+y"]}),
    ],
)  # fmt: skip
def test_report_without_hunks(unknown: Any) -> None:
    assert changes_of(unknown) == ()


@pytest.mark.parametrize(
    ("output", "of_command", "failed", "code"),
    [
        ("hi", {"stdout": "hi", "stderr": "", "interrupted": False}, False, 0),
        ("Exit code 3\nno", "Error: Exit code 3\nno", True, 3),
        ("Exit code 3000", None, True, None),
        ("Tool call denied: no", None, True, None),
        ([{"type": "image"}], None, True, None),
        ("No matches", {"stdout": "", "returnCodeInterpretation": "No matches found"}, False, None),
        ("started", {"stdout": "", "backgroundTaskId": "b1"}, False, None),
        ("", {"stdout": "", "interrupted": True}, False, None),
        ("hi", None, False, None),
    ],
)
def test_exit_code_of_a_command(output: Any, of_command: Any, failed: bool, code: int | None) -> None:
    assert exit_code_of(output, of_command, failed=failed) == code
