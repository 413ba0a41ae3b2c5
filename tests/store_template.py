"""What the stores of this process share: compiled SQL statements, and a database file whose tables have been created.

Each gateway of a test has its own engine and a new database file. Without this each of them compiles every statement anew and
creates the tables, which took a third of the time of a start. The tests in tests/gateway/store create their tables themselves,
as a daemon does.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.engine import Dialect

from gateway.private_files import private_data_directory, private_file
from gateway.store import Store, postgresql, sqlite
from gateway.store.sqlite import sqlite_url

_template: dict[str, bytes] = {}


class _CompiledStatements(dict[Any, Any]):
    """A cache for the option `compiled_cache` of SQLAlchemy that engines with dialects of one class share.

    The keys that SQLAlchemy uses begin with the dialect of an engine, so that a plain dictionary would have an entry for each.
    """

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return super().get(_shared(key), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        super().__setitem__(_shared(key), compiled)


def _shared(key: tuple[Any, ...]) -> tuple[Any, ...]:
    dialect, *rest = key
    assert isinstance(dialect, Dialect)
    return (type(dialect), *rest)


def share_compiled_statements() -> None:
    """Let the engines that are created from now on share their compiled statements."""
    for module in (sqlite, postgresql):
        module.create_engine = partial(create_engine, execution_options={"compiled_cache": _CompiledStatements()})  # type: ignore[attr-defined]


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
