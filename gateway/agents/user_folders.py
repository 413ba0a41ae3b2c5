"""Whether a folder that a client names is the user's own: of the user that the gateway runs as."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

MAX_LINKS = 40
"""Symbolic links in one path, as in Linux."""


def problem_of_folder(given: Path, resolved: Path, private: Path | None) -> str | None:
    """Return why an absolute path is not a folder of the user; None if it is one.

    `resolved` is the path without links. It must belong to the user, no link on the way may be of another user but root, and it
    must not be in `private`, the data directory of the gateway. Raises OSError if a part of the path cannot be read.
    """
    user = os.geteuid()
    if resolved.stat().st_uid != user:
        return "it belongs to another user"
    if any(link.st_uid not in (user, 0) for link in _links(given)):
        return "a symbolic link of another user leads there"
    if private is not None and resolved.is_relative_to(private.resolve()):
        return "it is in the data directory of the gateway"
    return None


def _links(path: Path) -> Iterator[os.stat_result]:
    """Yield the status of each symbolic link that the system follows to open a path."""
    done, rest, links = Path(path.anchor), list(path.parts[1:]), 0
    while rest and links < MAX_LINKS:
        part = rest.pop(0)
        if part == "..":
            done = done.parent
            continue
        status = os.lstat(done / part)
        if not stat.S_ISLNK(status.st_mode):
            done /= part
            continue
        yield status
        links += 1
        target = Path(os.readlink(done / part))
        if target.is_absolute():
            done = Path(target.anchor)
        rest = [*(target.parts[1:] if target.is_absolute() else target.parts), *rest]
