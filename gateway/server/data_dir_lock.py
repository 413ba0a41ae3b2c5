"""The lock of a data directory: one process at a time uses it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gateway.errors import ConfigError


@contextmanager
def data_dir_lock(data_dir: Path) -> Iterator[IO[str]]:
    """Lock a data directory for this process: two daemons would end each other's agents. Raises ConfigError if it is locked."""
    with open(data_dir / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"another portico runs with the data directory {data_dir}; stop it, or choose another directory with --data-dir"
            ) from None
        yield file
