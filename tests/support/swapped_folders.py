"""A process that swaps a folder with a symbolic link to another folder, as fast as it can, while a test opens paths in it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SWAPS = """
import ctypes, itertools, os, sys
folder, link = map(os.fsencode, sys.argv[1:])
libc = ctypes.CDLL(None, use_errno=True)
RENAME_EXCHANGE, AT_FDCWD = 2, -100

def exchange():
    if libc.renameat2(AT_FDCWD, folder, AT_FDCWD, link, RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), "renameat2")

def rename_three_times():
    # Without renameat2 (macOS) the path does not exist for a moment.
    other = folder + b"-other"
    os.rename(folder, other), os.rename(link, folder), os.rename(other, link)

swap = exchange if hasattr(libc, "renameat2") else rename_three_times
swap()
print("started", flush=True)
while True:
    swap()
"""


@contextmanager
def swapped(folder: Path, target: Path) -> Iterator[None]:
    """Swap an existing folder with a symbolic link to `target` until the end of the block."""
    link = folder.with_name(f"{folder.name}-link")
    link.symlink_to(target)
    program = [sys.executable, "-I", "-S", "-c", SWAPS, str(folder), str(link)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            yield
        finally:
            process.kill()
