"""The lock of a data directory: one process at a time uses it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from gateway.errors import ConfigError
from gateway.private_files import private_directory, private_file

LOCK = "lock"
"""The file of a data directory that is locked. It has no content."""


class DataDirLocked(ConfigError):
    """Another process uses the data directory."""


def data_dir_lock(data_dir: Path) -> IO[str]:
    """Create a data directory if it is missing, and lock it: two daemons would end each other's agents.

    Returns the open file. The directory is locked until all processes that have this file open have closed it or ended.
    Raises DataDirLocked, or ConfigError if the directory cannot be used.
    """
    try:
        if not data_dir.is_dir():
            private_directory(data_dir)
        lock = os.fdopen(private_file(data_dir / LOCK, os.O_WRONLY), "w")
    except OSError as error:
        raise ConfigError(
            f"the data directory {data_dir} cannot be used ({error.strerror}): make it writable for this user, or choose another "
            "with --data-dir"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise DataDirLocked(
            f"another portico runs with the data directory {data_dir}; stop it, or choose another directory with --data-dir"
        ) from None
    return lock


def received_lock(descriptor: int) -> IO[str]:
    """Return the file of `data_dir_lock`, by the descriptor that another process has handed over."""
    os.set_inheritable(descriptor, False)
    return os.fdopen(descriptor, "w")


@contextmanager
def lock_as_it_is(folder: Path) -> Iterator[None]:
    """Lock a folder that may be a data directory, and change nothing in it. Raises DataDirLocked.

    Only a file that exists is locked. It may belong to another program. One that cannot be locked is left alone.
    """
    file = folder / LOCK
    descriptor = _opened(file) if file.is_file() else None
    try:
        if descriptor is not None:
            with suppress(OSError):
                _lock(descriptor, file)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _opened(file: Path) -> int | None:
    # Network file systems lock only what may be written.
    for access in (os.O_RDWR, os.O_RDONLY):
        with suppress(OSError):
            return os.open(file, access | os.O_CLOEXEC)
    return None


def _lock(descriptor: int, file: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataDirLocked(f"{file} is locked: stop the portico that runs with the data directory {file.parent}") from None
