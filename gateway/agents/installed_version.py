"""The version of an installed program by its files, without starting it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from drivers.runtime.confined_files import NotRegularFile, read_file

VERSION = re.compile(r"\d+\.\d+\.\d+(?:-[\w.]+)?")
MAX_PACKAGE = 1024 * 1024
"""Bytes of a `package.json`."""
MAX_PARENTS = 4
"""How many folders above the program may have the `package.json` of its npm package."""


def installed_version(program: str) -> str | None:
    """Return the version that the npm package of a program has, or the part of its path that is a version; None without either.

    npm and Homebrew install programs as symbolic links, and the native installer of claude links to `versions/2.1.329`.
    """
    if not Path(program).is_absolute():
        # A program of an image.
        return None
    path = Path(program).resolve()
    for part in reversed(path.parts[1:]):
        if VERSION.fullmatch(part):
            return part
    for folder in list(path.parents)[:MAX_PARENTS] if "node_modules" in path.parts else ():
        try:
            package = json.loads(read_file(folder / "package.json", MAX_PACKAGE))
        except (OSError, ValueError, NotRegularFile):
            continue
        version = package.get("version") if isinstance(package, dict) else None
        # Some packages have files of this name, without a version, in folders of their own.
        if isinstance(version, str) and VERSION.fullmatch(version):
            return version
    return None
