"""Resolves the paths in the arguments of tool calls, for rules that ask or deny. It reads the file system."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path


class PathResolver:
    """Resolves paths of the calls of one session. `directory` returns its working directory, or raises an error.

    With `copy` of two folders, the first is a checkout of what the second has: rules about files of the second are for both.
    """

    def __init__(self, directory: Callable[[], Path], copy: tuple[str, str] | None = None) -> None:
        self._directory, self._copy = directory, copy

    def __call__(self, path: str) -> Iterable[str]:
        """Return the absolute path, and the one without symbolic links. A relative one is in the working directory.

        For a path in a copy, return those of what it is a copy of too.
        """
        found = os.path.expanduser(path)
        if not os.path.isabs(found):
            try:
                found = os.path.join(self._directory(), found)
            except Exception:
                # The directory is gone, or not permitted any more: no tool can work in it.
                return (found,)
        # Of links that lead to each other, realpath resolves what it can.
        forms = [os.path.normpath("/" + found.lstrip("/")), os.path.realpath(found)]
        if self._copy is not None:
            copy, original = self._copy
            same = (original + form[len(copy) :] for form in list(forms) if form == copy or form.startswith(copy + "/"))
            forms += [*same]
        return forms
