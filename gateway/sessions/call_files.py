"""The files that a pending call would change, as they are on the disk: whoever approves the call sees what it replaces."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivers.runtime.confined_files import ConfinedFolders, NotRegularFile, OutsideFolders, regular_file

MAX_FILES = 50
MAX_BYTES = 1024 * 1024
"""The size of the largest file that is read."""
PATH_FIELDS = ("file_path", "path", "notebook_path", "absolute_path", "filename")
LISTED_FIELDS = ("path", "file_path", "move_path")
"""Fields of the entries of `changes`, in which codex and agents of ACP list several files."""
PATCH_FIELDS = ("patch", "input")
_PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FileOnDisk:
    """A file of a call. `path` is the path in the call's input, `modified` the time in seconds since the epoch.

    `exists` is None and `problem` says why where nobody can know. `text` is None for a file that is not text or is too large.
    """

    path: str
    exists: bool | None = None
    text: str | None = None
    size: int | None = None
    modified: float | None = None
    problem: str | None = None


def paths_of(given: Any) -> list[str]:
    """Return the paths of files that a call with this input names as what it changes, without duplicates."""
    return [path for path in dict.fromkeys(_paths(given)) if path]


def _paths(given: Any) -> Iterator[str]:
    if isinstance(given, str):
        yield from (path.strip() for path in _PATCHED.findall(given))
    if not isinstance(given, dict):
        return
    yield from _strings(given, PATH_FIELDS)
    changes = given.get("changes")
    for change in changes if isinstance(changes, list) else ():
        if isinstance(change, dict):
            yield from _strings(change, LISTED_FIELDS)
    for patch in _strings(given, PATCH_FIELDS):
        yield from (path.strip() for path in _PATCHED.findall(patch))


def _strings(given: dict[str, Any], fields: Sequence[str]) -> Iterator[str]:
    yield from (value for field in fields if isinstance(value := given.get(field), str))


def read_files(paths: Sequence[str], folder: Path, others: Sequence[Path] = ()) -> list[FileOnDisk]:
    """Return the files of these paths. A relative path is in `folder`. It blocks: call it in a thread.

    All folders are real paths. What is outside of them, also by a symbolic link, is not looked at.
    """
    confined = ConfinedFolders([folder, *others])
    found = [_read(confined, folder, path) for path in paths[:MAX_FILES]]
    left = (FileOnDisk(path, problem=f"the call has more than {MAX_FILES} files") for path in paths[MAX_FILES:])
    return [*found, *left]


def _read(confined: ConfinedFolders, folder: Path, path: str) -> FileOnDisk:
    if path.startswith("~"):
        return FileOnDisk(path, problem="the agent may take ~ for a home folder")
    try:
        descriptor = confined.open(os.path.join(folder, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with regular_file(descriptor, "rb") as file:
            state, content = os.fstat(file.fileno()), file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return FileOnDisk(path, exists=False)
    except OutsideFolders:
        return FileOnDisk(path, problem="it is outside of the session's folders")
    except NotRegularFile:
        return FileOnDisk(path, problem="it is not a regular file")
    except (OSError, ValueError) as error:
        return FileOnDisk(path, problem=f"it cannot be read: {getattr(error, 'strerror', None) or error}")
    text, problem = _text(content)
    return FileOnDisk(path, True, text, state.st_size, state.st_mtime, problem)


def _text(content: bytes) -> tuple[str | None, str | None]:
    """The text of a file, or why it is not shown."""
    if len(content) > MAX_BYTES:
        return None, f"it has more than {MAX_BYTES // 1024} KiB"
    try:
        return content.decode(), None
    except UnicodeDecodeError:
        return None, "it is not text in UTF-8"
