"""What claude reports of a tool's result beside its text (`tool_use_result`): the hunks of an edit, the exit code of a command.

The members are those of claude 2.1.329. A report of another shape gives nothing.
"""

from __future__ import annotations

import re
from typing import Any

from drivers.codecs.file_changes import hunk
from drivers.contract.events import FileChange

MAX_CHANGES = 200_000
"""Characters of all hunks of an edit; of more, none are reported, and clients have the texts of the call's input."""
_EXIT_CODE = re.compile(r"Exit code (\d{1,3})(?:\n|$)")


def changes_of(report: Any) -> tuple[FileChange, ...]:
    """The hunks of an edit. The CLI has replaced leading tabs by spaces in them."""
    if not isinstance(report, dict) or not isinstance(path := report.get("filePath"), str):
        return ()
    hunks = report.get("structuredPatch")
    if not isinstance(hunks, list):
        return ()
    found = tuple(hunk(path, lines, start) for native in hunks for lines, start in _lines_of(native))
    return found if sum(len(change.old_text or "") + len(change.new_text) for change in found) <= MAX_CHANGES else ()


def _lines_of(native: Any) -> list[tuple[list[str], int | None]]:
    lines, start = (native.get("lines"), native.get("newStart")) if isinstance(native, dict) else (None, None)
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        return []
    return [(lines, start if isinstance(start, int) else None)]


def exit_code_of(output: Any, report: Any, *, failed: bool) -> int | None:
    """The exit code of a command; None where it has not ended, or the CLI does not report it.

    The text of a command that has failed begins with its code. A code other than 0 that is not a failure, such as of a search
    without matches, is reported in words only (`returnCodeInterpretation`).
    """
    if failed:
        found = _EXIT_CODE.match(output) if isinstance(output, str) else None
        return int(found[1]) if found else None
    if not isinstance(report, dict) or report.get("interrupted") or "stdout" not in report:
        return None
    unknown = report.get("returnCodeInterpretation") is not None or report.get("backgroundTaskId") is not None
    return None if unknown else 0
