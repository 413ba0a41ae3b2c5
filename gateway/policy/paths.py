"""Resolves the paths in the arguments of tool calls, for rules that ask or deny. It reads the file system."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path


class PathResolver:
    """Resolves paths of the calls of one session. `directory` returns its working directory, or raises an error."""

    def __init__(self, directory: Callable[[], Path]) -> None:
        self._directory = directory

    def __call__(self, path: str) -> Iterable[str]:
        """Return the absolute path, and the one without symbolic links. A relative one is in the working directory."""
        found = os.path.expanduser(path)
        if not os.path.isabs(found):
            try:
                found = os.path.join(self._directory(), found)
            except Exception:
                # The directory is gone, or not permitted any more: no tool can work in it.
                return (found,)
        # Of links that lead to each other, realpath resolves what it can.
        return (os.path.normpath("/" + found.lstrip("/")), os.path.realpath(found))
