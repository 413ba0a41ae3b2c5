"""The patterns of `.gitignore` files, without git: git would execute programs that the configuration of a repository names.

Format: https://git-scm.com/docs/gitignore. A file below an ignored folder cannot be included again, as in git.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAX_PATTERNS = 1000
"""Patterns of one file that are used."""
MAX_PATTERN = 256
"""Characters of a pattern. A longer one is left out."""
_ANY_FOLDERS = "**"
_GLOB = re.compile(r"[*?\[\\]")


@dataclass(frozen=True, slots=True)
class _Pattern:
    """`parts` are those of a path relative to the folder of the file, or of a name anywhere below it; None is any folders."""

    parts: Sequence[re.Pattern[str] | str | None]
    anywhere: bool
    folders_only: bool
    ignored: bool

    def matches(self, path: Sequence[str], *, folder: bool) -> bool:
        if self.folders_only and not folder:
            return False
        if self.anywhere:
            return _part_matches(self.parts[0], path[-1])
        return _path_matches(self.parts, path)


def _part_matches(part: re.Pattern[str] | str | None, name: str) -> bool:
    return part is None or (part == name if isinstance(part, str) else part.match(name) is not None)


def _path_matches(parts: Sequence[re.Pattern[str] | str | None], path: Sequence[str]) -> bool:
    """Whether a path matches, in a time that is proportional to the product of both lengths."""
    # The lengths of the path's beginnings that the parts so far match.
    reached = {0}
    for number, part in enumerate(parts):
        if part is None:
            # At the end it stands for one or more, elsewhere for any number of folders.
            least = min(reached) + (number == len(parts) - 1)
            reached = {*range(least, len(path) + 1)}
        else:
            reached = {at + 1 for at in reached if at < len(path) and _part_matches(part, path[at])}
        if not reached:
            return False
    return len(path) in reached


class IgnoreRules:
    """The patterns of one file. `folder` are the names of the folders from the top to it."""

    def __init__(self, folder: Sequence[str], text: str) -> None:
        self._depth = len(folder)
        self._patterns = list(_patterns(text))[:MAX_PATTERNS]
        # The last pattern that matches decides.
        self._patterns.reverse()

    def decision(self, path: Sequence[str], *, folder: bool) -> bool | None:
        """Return whether a path (its names from the top) is ignored; None if no pattern matches it."""
        below = path[self._depth :]
        return next((one.ignored for one in self._patterns if one.matches(below, folder=folder)), None)


def is_ignored(rules: Sequence[IgnoreRules], path: Sequence[str], *, folder: bool) -> bool:
    """Return whether a path is ignored by the files of the folders above it, the topmost first: the lowest precedes."""
    for one in reversed(rules):
        decided = one.decision(path, folder=folder)
        if decided is not None:
            return decided
    return False


def _patterns(text: str) -> Iterator[_Pattern]:
    for line in text.splitlines():
        given = line.rstrip()
        if not given or given.startswith("#") or len(given) > MAX_PATTERN:
            continue
        ignored = not given.startswith("!")
        given = given[0 if ignored else 1 :]
        folders_only = given.endswith("/")
        given = given.rstrip("/") if folders_only else given
        anywhere = "/" not in given
        names = [name for name in given.split("/") if name]
        if names:
            yield _Pattern([_part(name) for name in names], anywhere, folders_only, ignored)


def _part(name: str) -> re.Pattern[str] | str | None:
    if name == _ANY_FOLDERS:
        return None
    if not _GLOB.search(name):
        return name
    # `\#` and `\!` at the beginning, and other escaped characters, stand for themselves.
    escaped = re.sub(r"\\(.)", lambda match: f"[{match[1]}]" if match[1] in "*?[" else match[1], name)
    # The expressions of fnmatch do not backtrack beyond one `*`.
    return re.compile(fnmatch.translate(escaped.replace("[^", "[!")))
