"""The lock of a data directory: one process at a time uses it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gateway.errors import ConfigError
from gateway.private_files import private_directory, private_file


class DataDirLocked(ConfigError):
    """Another process uses the data directory."""


@contextmanager
def data_dir_lock(data_dir: Path) -> Iterator[IO[str]]:
    """Create a data directory if it is missing, and lock it for this process: two daemons would end each other's agents.

    Raises DataDirLocked, or ConfigError if the directory cannot be used.
    """
    try:
        if not data_dir.is_dir():
            private_directory(data_dir)
        # Not in a `with` here: the errors of the block below are not those of opening it.
        lock = os.fdopen(private_file(data_dir / "lock", os.O_WRONLY | os.O_TRUNC), "w")
    except OSError as error:
        raise ConfigError(
            f"the data directory {data_dir} cannot be used ({error.strerror}): make it writable for this user, or choose another "
            "with --data-dir"
        ) from None
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataDirLocked(
                f"another portico runs with the data directory {data_dir}; stop it, or choose another directory with --data-dir"
            ) from None
        yield file
