"""A database file whose tables have been created, for the stores of this process.

Each gateway of a test has a new database file. Without this each of them would create the tables. The tests in
tests/gateway/store create their tables themselves, as a daemon does.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from gateway.private_files import private_data_directory, private_file
from gateway.store import Store
from gateway.store.sqlite import sqlite_url

_template: dict[str, bytes] = {}


async def create_database(data_dir: Path) -> None:
    """Create the data directory with the files of an empty database, unless it exists."""
    if not _template:
        with tempfile.TemporaryDirectory() as folder:
            store = await Store.open(sqlite_url(Path(folder)))
            await store.close()
            _template.update(_contents(Path(folder)))
    _write_template(data_dir)


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _write_template(data_dir: Path) -> None:
    if not data_dir.exists():
        private_data_directory(data_dir)
        for name, content in _template.items():
            with os.fdopen(private_file(data_dir / name, os.O_RDWR), "wb") as file:
                file.write(content)
