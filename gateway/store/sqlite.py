"""What is specific to SQLite: the file in the data directory, the settings of a connection, and an explicit transaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event

PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=10000")
"""WAL with synchronous=NORMAL keeps every commit when the process is killed, and does not need an fsync for each of them.

The busy timeout is in milliseconds: another process (`portico audit`) may hold the lock for a moment.
"""


def sqlite_url(data_dir: Path) -> str:
    """Returns the URL of the SQLite file in a data directory."""
    return f"sqlite:///{data_dir / 'portico.db'}"


def configure_sqlite(engine: Engine) -> None:
    """Sets PRAGMAS on every connection that the engine opens."""
    event.listen(engine, "connect", _on_connect)


def begin_immediately(connection: Connection) -> None:
    """Takes the write lock now, so that a whole migration is one transaction.

    Python's sqlite3 begins a transaction before INSERT, UPDATE and DELETE only: it would commit each CREATE and ALTER by itself.
    """
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _on_connect(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    for pragma in PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
