"""Programs that tests write."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def write_program(path: Path, code: str) -> Path:
    """Write a program in Python that imports nothing but the standard library."""
    # The first line of a script cannot have the path of an interpreter with spaces. For the shell the second line is a command,
    # for Python it is the start of a string.
    return write_script(path, f"""'''exec' {shlex.quote(sys.executable)} -IS "$0" "$@"\n' '''\n{code}""")


def write_script(path: Path, code: str) -> Path:
    """Write a program for the shell."""
    path.write_text(f"#!/bin/sh\n{code}")
    path.chmod(0o755)
    return path
