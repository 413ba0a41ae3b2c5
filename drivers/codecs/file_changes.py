"""The hunks of changed files: of unified diffs, and of diffs as lists of lines. No state."""

from __future__ import annotations

import re
from collections.abc import Iterable

from drivers.contract.events import FileChange

_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@")


def hunks_of_diff(path: str, diff: str) -> list[FileChange]:
    """The hunks of a unified diff of one file. A hunk whose header has no line numbers, as in `apply_patch`, has none."""
    found: list[FileChange] = []
    lines: list[str] | None = None
    start: int | None = None
    for line in diff.split("\n"):
        if line.startswith("@@"):
            if lines is not None:
                found.append(hunk(path, lines, start))
            header = _HUNK.match(line)
            lines, start = [], int(header[1]) if header else None
        elif lines is not None:
            lines.append(line)
    if lines is not None:
        if lines and not lines[-1]:
            lines.pop()
        found.append(hunk(path, lines, start))
    return found


def hunk(path: str, lines: Iterable[str], start: int | None) -> FileChange:
    """One hunk, of lines that begin with `-`, `+` or a space. `start` is the number of its first line in the changed file."""
    old: list[str] = []
    new: list[str] = []
    for line in lines:
        mark, text = line[:1], line[1:]
        if mark == "\\":
            # "\\ No newline at end of file"
            continue
        if mark != "+":
            old.append(text)
        if mark != "-":
            new.append(text)
    # The start of a hunk without new lines is the line before it, which is 0 in an empty file.
    line_number = None if start is None else max(start, 1)
    return FileChange(path=path, old_text="\n".join(old), new_text="\n".join(new), line=line_number)
