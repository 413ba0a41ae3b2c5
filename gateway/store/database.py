"""Database: SQLAlchemy's synchronous engine, one thread for writes and a few for reads. It knows no query but its own version."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, create_engine, insert, inspect, make_url, select, update
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from gateway.errors import ConfigError, StoreAbandoned, StoreUnavailable
from gateway.store import schema
from gateway.store.migrations import migrate
from gateway.store.sqlite import (
    begin_immediately,
    checkpoint,
    commit_counter,
    configure_sqlite,
    explain_sqlite_error,
    is_damage,
    make_private,
)

log = logging.getLogger(__name__)

Result = TypeVar("Result")

ABANDONED = "the gateway is shutting down, and its store does not answer"
READERS = 3
"""Threads for reads, each with a connection of its own (about 0.2 MB with SQLite). They start when they are needed."""
SYNCHRONOUS_DRIVERS = {"sqlite+aiosqlite": "sqlite"}
"""Drivers that configurations name and that only work with asyncio, and what is used instead."""


class Database:
    """Runs functions that take a connection, each in a transaction of its own on a thread. Open with `await open(url)`.

    The asyncio engine of SQLAlchemy is not used: it needs a switch of threads for each statement, where this needs one for
    each transaction, and it imports the ORM (docs/decisions/store-engine.md).
    """

    problem: str | None = None
    """What is wrong with the data since the last start; None if nothing is known."""

    def __init__(self, engine: Engine, *, read_only: bool = False) -> None:
        self._engine = engine
        self._commits = None if read_only else commit_counter(engine)
        self._explains = False
        # One writer: SQLite has one write lock, and a queue in front of it is fair, which its busy handler is not.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        # A database in memory has a single connection.
        in_memory = isinstance(engine.pool, StaticPool)
        self._readers = self._writer if in_memory else ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self._write_connection: Connection | None = None
        self._waiting: dict[asyncio.Future[Any], asyncio.Future[Any]] = {}
        self.abandoned = False
        """Whether `abandon` was called: a thread may still be blocked by the database."""

    @classmethod
    async def open(cls, url: str, in_use: Sequence[Path] = ()) -> Self:
        """Connects; creates the tables or migrates older ones. Sets `problem`.

        Raises ConfigError if a newer version has written the database, if it cannot be used, or if it is empty although it was
        used before: `in_use` are files and folders that are there only if it was.
        """
        database = cls(_engine(url))
        async with database._opening():
            await asyncio.get_running_loop().run_in_executor(database._writer, database._prepare, in_use)
        return database

    @classmethod
    async def open_unchanged(cls, url: str) -> Self:
        """Connects, and migrates nothing. Raises ConfigError if the database is not of this version, or cannot be used."""
        database = cls(_engine(url), read_only=True)
        async with database._opening():
            await database.read(_check_version)
        return database

    @asynccontextmanager
    async def _opening(self) -> AsyncIterator[None]:
        try:
            with self.explained_errors():
                yield
        except BaseException:
            await self.close()
            raise

    @contextmanager
    def explained_errors(self) -> Iterator[None]:
        """Raises ConfigError, with what to do, instead of an error of the database."""
        self._explains = True
        try:
            yield
        except (SQLAlchemyError, StoreUnavailable) as failure:
            error = failure.__cause__ or failure if isinstance(failure, StoreUnavailable) else failure
            name = self._engine.url.render_as_string(hide_password=True)
            file = self._engine.url.database or name
            explained = explain_sqlite_error(error.__cause__, file)
            first_line = str(error).split("\n", 1)[0]
            raise ConfigError(explained or f"the database {name} cannot be used: {first_line}") from error
        except OSError as error:
            if error.filename is None:
                raise
            raise ConfigError(f"{error.filename} cannot be used: {error.strerror}") from error
        finally:
            self._explains = False

    def _prepare(self, in_use: Sequence[Path]) -> None:
        make_private(self._engine)
        with self._engine.connect() as connection:
            found = _version(connection)
            recorded = self._commits.recorded if self._commits else None
            if found is None and (used := [*in_use, *([recorded] if recorded else [])]):
                named = ", ".join(map(str, used))
                raise ConfigError(
                    f"the database {self._engine.url.database} is empty, but was used before ({named}): restore a backup of the "
                    f"database, or start with an empty store: move {named} away"
                )
            if self._commits:
                self.problem = self._commits.start(connection)
        if found != schema.VERSION:
            self._write(_migrate)
            with self._engine.connect() as connection:
                # So that a database whose log is removed has its tables.
                checkpoint(connection)

    async def close(self) -> None:
        """Waits for the queued writes and closes all connections.

        After `abandon` it waits for nothing, and only stops the threads.
        """
        with suppress(StoreAbandoned):
            await self._finished(asyncio.get_running_loop().run_in_executor(self._writer, _nothing))
        if self.abandoned:
            for threads in (self._writer, self._readers):
                threads.shutdown(wait=False, cancel_futures=True)
        else:
            # Not one of the event loop's default threads: file accesses may block all of them.
            closer = ThreadPoolExecutor(1, thread_name_prefix="store-closer")
            try:
                await asyncio.get_running_loop().run_in_executor(closer, self._close)
            finally:
                closer.shutdown(wait=False)

    def _close(self) -> None:
        self._writer.shutdown()
        self._readers.shutdown()
        self._release_write_connection()
        self._engine.dispose()
        if self._commits:
            self._commits.close()

    async def write(self, transaction: Callable[[Connection], Result]) -> Result:
        """Runs a function in a transaction, after all writes that were queued before; committed when this returns.

        Cancelling the caller does not cancel the write: it is queued before the first `await`, and is completed. Raises
        StoreUnavailable where the database cannot write now, as with a full disk or a lock of another process.
        """
        if self.abandoned:
            raise StoreAbandoned(ABANDONED)
        writing = asyncio.get_running_loop().run_in_executor(self._writer, self._write, transaction)
        try:
            return await self._finished(writing)
        except OperationalError as error:
            raise StoreUnavailable(f"the store cannot be written: {error.orig}") from error

    def abandon(self) -> None:
        """Fails the writes that are waited for, and all later ones, with StoreAbandoned: the process is to exit soon.

        For a database that is locked or whose disk does not answer. A write that has begun may still be completed. Idempotent.
        """
        self.abandoned = True
        for outer, writing in self._waiting.items():
            if not outer.done():
                outer.set_exception(StoreAbandoned(ABANDONED))
                writing.add_done_callback(lambda future: future.cancelled() or future.exception())

    async def _finished(self, writing: asyncio.Future[Result]) -> Result:
        outer = asyncio.shield(writing)
        self._waiting[outer] = writing
        try:
            return await outer
        finally:
            del self._waiting[outer]

    async def read(self, query: Callable[[Connection], Result]) -> Result:
        """Runs a function that only reads. It sees every write that has returned. All rows must be fetched within it."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, query)

    def _write(self, transaction: Callable[[Connection], Result]) -> Result:
        with self._noticed_damage():
            connection = self._write_connection
            if connection is None:
                # It is kept: the pool needs 100 us of a turn's first transaction.
                connection = self._write_connection = self._engine.connect()
            try:
                with connection.begin():
                    result = transaction(connection)
                    count = self._commits.count(connection) if self._commits else None
            except BaseException:
                # A rollback that failed has left what the next commit would store.
                self._release_write_connection()
                raise
        if self._commits:
            self._commits.record(count)
        return result

    def _release_write_connection(self) -> None:
        """Gives the connection of the writes back to the pool, which resets it, or replaces it if it is lost."""
        connection, self._write_connection = self._write_connection, None
        if connection is not None:
            connection.close()

    def _read(self, query: Callable[[Connection], Result]) -> Result:
        with self._noticed_damage(), self._engine.connect() as connection:
            return query(connection)

    @contextmanager
    def _noticed_damage(self) -> Iterator[None]:
        """Sets `problem` where an error shows that the database is damaged."""
        try:
            yield
        except SQLAlchemyError as error:
            if self.problem is None and is_damage(error.__cause__):
                self.problem = "the database is damaged: stop the gateway and restore a backup; the log has details"
                if not self._explains:
                    log.error("%s", explain_sqlite_error(error.__cause__, str(self._engine.url.database)))
            raise

    @property
    def folder(self) -> Path | None:
        """The folder of the database file; None if the database is not a file."""
        return self._commits.folder if self._commits else None

    async def touch(self) -> None:
        """Writes a value that is there already. Raises what any other write would raise."""
        version = schema.schema_version
        await self.write(lambda connection: connection.execute(update(version).values(version=version.c.version)).close())


def _nothing() -> None: ...


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


def _migrate(connection: Connection) -> None:
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
