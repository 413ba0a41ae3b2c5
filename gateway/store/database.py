"""Database: SQLAlchemy's synchronous engine, one thread for writes and a few for reads. It knows no query but its own version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

from sqlalchemy import Connection, Engine, create_engine, insert, inspect, make_url, select, update
from sqlalchemy.pool import StaticPool

from gateway.errors import ConfigError
from gateway.store import schema
from gateway.store.migrations import migrate
from gateway.store.sqlite import begin_immediately, configure_sqlite

Result = TypeVar("Result")

READERS = 3
"""Threads for reads, each with a connection of its own (about 0.2 MB with SQLite). They start when they are needed."""
SYNCHRONOUS_DRIVERS = {"sqlite+aiosqlite": "sqlite"}
"""Drivers that configurations name and that only work with asyncio, and what is used instead."""


class Database:
    """Runs functions that take a connection, each in a transaction of its own on a thread. Open with `await open(url)`.

    The asyncio engine of SQLAlchemy is not used: it needs a switch of threads for each statement, where this needs one for
    each transaction, and it imports the ORM (docs/decisions/store-engine.md).
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # One writer: SQLite has one write lock, and a queue in front of it is fair, which its busy handler is not.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        # A database in memory has a single connection.
        in_memory = isinstance(engine.pool, StaticPool)
        self._readers = self._writer if in_memory else ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connects; creates the tables or migrates older ones. Raises ConfigError if a newer version has written the database."""
        return await cls._open(url, _prepare)

    @classmethod
    async def open_unchanged(cls, url: str) -> Self:
        """Connects, and migrates nothing. Raises ConfigError if the database is not of this version."""
        return await cls._open(url, _check_version)

    @classmethod
    async def _open(cls, url: str, prepare: Callable[[Connection], None]) -> Self:
        database = cls(_engine(url))
        try:
            await database.write(prepare)
        except BaseException:
            await database.close()
            raise
        return database

    async def close(self) -> None:
        """Waits for the queued writes and closes all connections."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._writer.shutdown()
        self._readers.shutdown()
        self._engine.dispose()

    async def write(self, transaction: Callable[[Connection], Result]) -> Result:
        """Runs a function in a transaction, after all writes that were queued before; committed when this returns.

        Cancelling the caller does not cancel the write: it is queued before the first `await`, and is completed.
        """
        writing = asyncio.get_running_loop().run_in_executor(self._writer, self._write, transaction)
        return await asyncio.shield(writing)

    async def read(self, query: Callable[[Connection], Result]) -> Result:
        """Runs a function that only reads. It sees every write that has returned. All rows must be fetched within it."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, query)

    def _write(self, transaction: Callable[[Connection], Result]) -> Result:
        with self._engine.begin() as connection:
            return transaction(connection)

    def _read(self, query: Callable[[Connection], Result]) -> Result:
        with self._engine.connect() as connection:
            return query(connection)

    async def touch(self) -> None:
        """Writes a value that is there already. Raises what any other write would raise."""
        version = schema.schema_version
        await self.write(lambda connection: connection.execute(update(version).values(version=version.c.version)).close())


def _engine(url: str) -> Engine:
    parsed = make_url(url)
    parsed = parsed.set(drivername=SYNCHRONOUS_DRIVERS.get(parsed.drivername, parsed.drivername))
    # Messages do not belong in a log, which is where the values of a failing statement would be written.
    if parsed.get_backend_name() != "sqlite":
        return create_engine(parsed, hide_parameters=True)
    in_memory = parsed.database in (None, "", ":memory:")
    engine = create_engine(
        parsed,
        hide_parameters=True,
        # Connections are used by one thread at a time, not always by the same one.
        connect_args={"check_same_thread": False},
        **({"poolclass": StaticPool} if in_memory else {}),
    )
    configure_sqlite(engine)
    return engine


def _prepare(connection: Connection) -> None:
    if _version(connection) == schema.VERSION:
        return
    begin_immediately(connection)
    # Another process may have migrated it before this one got the lock.
    found = _version(connection)
    _check_not_newer(found)
    schema.metadata.create_all(connection)
    if found is None:
        connection.execute(insert(schema.schema_version).values(version=schema.VERSION))
    elif found < schema.VERSION:
        migrate(connection, found)


def _check_version(connection: Connection) -> None:
    found = _version(connection)
    _check_not_newer(found)
    if found is None:
        raise ConfigError("the database is empty: `portico serve` creates the tables")
    if found < schema.VERSION:
        raise ConfigError(
            f"the store is of version {found}, this portico reads {schema.VERSION}: a daemon of this version migrates it when it "
            "starts; if one of the older version runs, use the command of that version"
        )


def _check_not_newer(found: int | None) -> None:
    if found is not None and found > schema.VERSION:
        raise ConfigError(
            f"the store is of version {found}, this portico reads {schema.VERSION}: install the portico that wrote it"
        )


def _version(connection: Connection) -> int | None:
    if not inspect(connection).has_table(schema.schema_version.name):
        return None
    version: int | None = connection.execute(select(schema.schema_version.c.version)).scalar()
    return version
