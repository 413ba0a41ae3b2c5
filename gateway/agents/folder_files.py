"""The files and folders of a working folder by a part of their path, for completion. Nothing is opened but `.gitignore` files."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from drivers.runtime.confined_files import ConfinedFolders, NotRegularFile, OutsideFolders, regular_file
from gateway.agents.ignore_rules import IgnoreRules, is_ignored

MAX_ENTRIES = 20_000
"""Files and folders that are found in one folder at most: those nearest to the top."""
MAX_SECONDS = 1.0
"""How long the search in the file system takes at most."""
KEPT_SECONDS = 5.0
"""How long what was found is used again: a user types one character after the other."""
KEPT_FOLDERS = 8
MAX_IGNORE_FILE = 64 * 1024
SKIPPED = frozenset({".git", ".hg", ".svn", "node_modules", ".venv", "__pycache__"})
"""Folders that are left out, whatever ignores them."""


@dataclass(frozen=True, slots=True)
class FoundPath:
    """A path relative to the folder."""

    path: str
    type: Literal["file", "folder"]


@dataclass(frozen=True, slots=True)
class _Listing:
    paths: Sequence[FoundPath]
    complete: bool
    made: float


class FolderFiles:
    """Lists folders, and keeps the last lists for some seconds. `find` blocks: call it in a thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Path, _Listing] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, folder: Path, query: str, limit: int) -> tuple[list[FoundPath], bool]:
        """Return the best matches for a part of a path, and whether there may be more. Raises OSError.

        A path matches if it has the characters of the query in this order, upper or lower case. `folder` is a real path; nothing
        is read where one of its components is a symbolic link by now. Symbolic links are listed as files, and not followed.
        """
        listing = self._listing(folder)
        found = listing.paths if not query else _ranked(listing.paths, query)
        return list(found[:limit]), len(found) > limit or not listing.complete

    def _listing(self, folder: Path) -> _Listing:
        with self._lock:
            kept = self._kept.get(folder)
        if kept is not None and time.monotonic() < kept.made + KEPT_SECONDS:
            return kept
        listing = _list(folder)
        with self._lock:
            self._kept[folder] = listing
            self._kept.move_to_end(folder)
            while len(self._kept) > KEPT_FOLDERS:
                self._kept.popitem(last=False)
        return listing


def _list(folder: Path) -> _Listing:
    confined, until = ConfinedFolders([folder]), time.monotonic() + MAX_SECONDS
    found: list[FoundPath] = []
    # The entries of a folder come before those of the folders in it.
    waiting: deque[tuple[tuple[str, ...], tuple[IgnoreRules, ...]]] = deque([((), ())])
    while waiting:
        names, rules = waiting.popleft()
        try:
            entries = _entries(confined, folder, names)
        except (OSError, OutsideFolders, ValueError):
            if not names:
                raise
            # It was removed, or replaced by a link, or must not be read.
            continue
        if any(name == ".gitignore" for name, _ in entries):
            rules = (*rules, IgnoreRules(names, _ignore_file(confined, folder, names)))
        for name, is_folder in entries:
            path = (*names, name)
            if (is_folder and name in SKIPPED) or is_ignored(rules, path, folder=is_folder):
                continue
            if len(found) >= MAX_ENTRIES or time.monotonic() > until:
                return _Listing(found, False, time.monotonic())
            found.append(FoundPath("/".join(path), "folder" if is_folder else "file"))
            if is_folder:
                waiting.append((path, rules))
    return _Listing(found, True, time.monotonic())


def _entries(confined: ConfinedFolders, folder: Path, names: Sequence[str]) -> list[tuple[str, bool]]:
    """The names in a folder, in order, and whether each is a folder."""
    descriptor = confined.open(os.path.join(folder, *names), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with os.scandir(descriptor) as entries:
            return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if _is_text(entry.name))
    finally:
        os.close(descriptor)


def _is_text(name: str) -> bool:
    """Whether a name is UTF-8. Others cannot be in a response."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


def _ignore_file(confined: ConfinedFolders, folder: Path, names: Sequence[str]) -> str:
    with suppress(OSError, OutsideFolders, NotRegularFile, ValueError):
        descriptor = confined.open(os.path.join(folder, *names, ".gitignore"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with regular_file(descriptor, "rb") as file:
            return file.read(MAX_IGNORE_FILE).decode(errors="replace")
    return ""


def _ranked(paths: Sequence[FoundPath], query: str) -> list[FoundPath]:
    wanted = query.casefold()
    ranks = ((_rank(one.path.casefold(), wanted), number) for number, one in enumerate(paths))
    found = sorted((rank, number) for rank, number in ranks if rank is not None)
    return [paths[number] for _, number in found]


def _rank(path: str, wanted: str) -> tuple[int, int, int] | None:
    """The place of a path among those that match, the lowest first; None if it does not match."""
    first = at = path.find(wanted[0])
    for character in wanted[1:]:
        if at >= 0:
            at = path.find(character, at + 1)
    if at < 0:
        return None
    name = path.rpartition("/")[2]
    kinds = (name == wanted, name.startswith(wanted), wanted in name, wanted in path)
    return next((rank for rank, fits in enumerate(kinds) if fits), len(kinds)), at - first, len(path)
