"""Database: opens a database of a URL, creates its tables, and lets no other daemon use it."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from gateway.errors import ConfigError, StoreUnavailable
from gateway.store import schema, search_index
from gateway.store.backend import Exclusion, Failure
from gateway.store.node_ids import wait_until_silent, write_first
from gateway.store.sql import Connection
from gateway.store.times import STORE_TIMES, StoreTimes
from gateway.store.transactions import IntegrityError, Transactions
from gateway.store.urls import backend_of
from gateway.store.versions import check_usable, store_version

Result = TypeVar("Result")

SILENT = 10.0
"""Seconds without a heartbeat after which a node is taken for dead."""


class Database(Transactions):
    """Transactions of the database of a URL. Open with `await open(url)`. It knows no query but that of its version."""

    @classmethod
    async def open(cls, url: str, in_use: Sequence[Path] = (), times: StoreTimes = STORE_TIMES) -> Self:
        """Connects, and creates the tables in an empty database.

        Raises ConfigError if the database is of another version, with nothing in it changed, if it cannot be used at all, or if
        it is empty although it was used before: `in_use` are files and folders that are there only if it was.
        """
        return await cls._open(url, in_use, times=times)

    @classmethod
    async def open_alone(cls, url: str, in_use: Sequence[Path] = (), times: StoreTimes = STORE_TIMES) -> Self:
        """Opens a database as `open`, which no other daemon may use until it is closed. Raises ConfigError if one does.

        An SQLite file has no lock of its own: that of its data directory is held by the caller.
        """
        return await cls._open(url, in_use, shared=False, times=times)

    @classmethod
    async def open_as_node(
        cls, url: str, node: str | None = None, silent: float = SILENT, times: StoreTimes = STORE_TIMES
    ) -> Self:
        """Opens a database as `open_alone`, but other nodes may use it too. `node` is the id of this one.

        Raises NodeRuns if a daemon with the same id runs. One that keeps its connection to the database without a heartbeat for
        `silent` seconds does not: its connection is ended. From then on no other program gets the id until the database is closed
        or the connection lost. If one has got it, all writes raise NodeIdTaken.
        """
        return await cls._open(url, shared=True, node=node, silent=silent, times=times)

    @classmethod
    async def open_for_copy(cls, url: str) -> Self:
        """Opens a database as `open_alone`, but no other program may use it, and nothing waits for one that does."""
        return await cls._open(url, shared=False, for_copy=True)

    @classmethod
    async def open_unchanged(cls, url: str) -> Self:
        """Connects, and creates nothing. Raises ConfigError if the database is empty or of another version."""
        database = cls(backend_of(url))
        async with database._opening():
            database._check_exists()
            await asyncio.get_running_loop().run_in_executor(database._readers, database._check_file)
            await database.read(database._check_version)
        return database

    @classmethod
    async def read_only(cls, url: str, query: Callable[[Connection], Result]) -> Result:
        """Runs a function that reads a database of any version, and changes nothing. Raises ConfigError."""
        database = cls(backend_of(url))

        def read() -> Result:
            with database._backend.read_only() as connection:
                return query(connection)

        async with database._opening():
            database._check_exists()
            result = await asyncio.get_running_loop().run_in_executor(database._readers, read)
        await database.close()
        return result

    @classmethod
    async def _open(
        cls,
        url: str,
        in_use: Sequence[Path] = (),
        *,
        shared: bool | None = None,
        node: str | None = None,
        silent: float = SILENT,
        for_copy: bool = False,
        times: StoreTimes = STORE_TIMES,
    ) -> Self:
        """Opens a database, creates its tables if it is empty, and claims it, `shared` or not; None: without a claim.

        `node` is the id of the node that opens it: another one with that id is dead after `silent` seconds without a heartbeat.
        With `for_copy` it is the target of a copy.
        """
        backend = backend_of(url, times=times)
        if for_copy:
            backend.use_alone()
        database = cls(backend)
        async with database._opening():
            await asyncio.get_running_loop().run_in_executor(database._writer, database._check_file)
            if for_copy:
                # The claim would wait for a daemon, or for the lock of the source if both are one database.
                await database._check_unused()
            claims = (shared is not None and backend.claim(shared=shared, node=node)) or for_copy
            try:
                prepare = partial(database._prepare, in_use)
                await asyncio.get_running_loop().run_in_executor(database._writer, prepare)
                if claims:
                    # It may have become the target of a copy meanwhile.
                    if node is None:
                        await database.write(database._check_version)
                    else:
                        if backend.is_pooled:
                            await wait_until_silent(database.read, node, silent)
                        await write_first(partial(database.write, database._check_version), database.read, node, silent)
            except Exception as error:
                cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
                if claims and backend.failure(cause) is Failure.LOCKED:
                    other = "a daemon without [node]" if shared else "a daemon" if for_copy else "another daemon"
                    raise database._used(other) from error
                raise
        return database

    @asynccontextmanager
    async def without_daemons(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Lets no daemon write the database inside. Raises ConfigError if one uses it.

        What it returns raises ConfigError if a daemon may have written it since: the connection with the lock was lost.
        """
        with self.explained_errors():
            exclusion = await self._exclude()
        if exclusion is None:
            raise self._used("a daemon")

        async def check() -> None:
            with self.explained_errors():
                held = await asyncio.get_running_loop().run_in_executor(self._readers, exclusion.is_held)
            if not held:
                raise ConfigError(
                    f"the connection that kept daemons away from the database {self._backend.name} was lost, and one may have "
                    "written to it since: give the command again"
                )

        try:
            yield check
        finally:
            exclusion.release()

    @contextmanager
    def explained_errors(self) -> Iterator[None]:
        """Raises ConfigError, with what to do, instead of an error of the database."""
        self._explains = True
        try:
            yield
        except OSError as error:
            if error.filename is None:
                raise
            raise ConfigError(f"{error.filename} cannot be used: {error.strerror}") from error
        except Exception as error:
            cause = (error.__cause__ or error) if isinstance(error, StoreUnavailable | IntegrityError) else error
            if self._backend.failure(cause) is None and not isinstance(error, StoreUnavailable):
                raise
            first_line = str(cause).strip().split("\n", 1)[0]
            explained = self._backend.explain(cause)
            raise ConfigError(explained or f"the database {self._backend.name} cannot be used: {first_line}") from error
        finally:
            self._explains = False

    @property
    def folder(self) -> Path | None:
        """The folder of the database file; None if the database is not a file."""
        return self._backend.folder

    async def release_space(self) -> None:
        """Returns free space of an SQLite file to the file system, but for a tenth of the file, in small transactions."""
        if await self.read(self._backend.has_free_space):
            while await self.write(self._backend.release_space):
                pass
            await self.read(self._backend.checkpoint)

    async def touch(self) -> None:
        """Writes a value that is there already. Raises what any other write would raise."""

        def touch(connection: Connection) -> None:
            connection.execute("UPDATE store_version SET version = version")

        await self.write(touch)

    @asynccontextmanager
    async def _opening(self) -> AsyncIterator[None]:
        try:
            with self.explained_errors():
                yield
        except BaseException:
            await self.close()
            raise

    def _check_exists(self) -> None:
        """Raise ConfigError if there is no database file: connecting would create it."""
        if self._is_missing():
            raise ConfigError(f"there is no database in {self._backend.name}: check the path; `portico serve` creates it")

    def _check_file(self) -> None:
        """Raise ConfigError if a database file is of another version, before a connection changes the file."""
        if self._backend.folder is None or self._is_missing():
            return
        try:
            with self._backend.read_only() as connection:
                check_usable(store_version(connection, self._backend.url), self._backend.url)
        except Exception as error:
            # What cannot be read is reported by the connection that is opened next.
            if self._backend.failure(error) is None and not isinstance(error, StoreUnavailable | OSError):
                raise

    def _is_missing(self) -> bool:
        """Whether the database is a file that does not exist, or has no content yet."""
        if self._backend.folder is None:
            return False
        try:
            found = Path(self._backend.name).stat()
        except OSError as error:
            return isinstance(error, FileNotFoundError)
        return stat.S_ISREG(found.st_mode) and found.st_size == 0

    def _prepare(self, in_use: Sequence[Path]) -> None:
        backend = self._backend
        if self._is_missing():
            # Before anything is created.
            self._check_unused_before(in_use)
        backend.before_connecting()
        with backend.reading() as connection:
            found = store_version(connection, backend.url)
            if found is None:
                self._check_unused_before(in_use)
            check_usable(found, backend.url)
        if found is None:
            with backend.creation() as connection:
                self._create_tables(connection)
        with backend.reading() as connection:
            prepared = search_index.is_prepared(connection)
        if not prepared:
            with backend.creation() as connection:
                search_index.prepare(connection)
        if found is None:
            with backend.reading() as connection:
                # So that a database whose log is removed has its tables.
                backend.checkpoint(connection)

    def _check_unused_before(self, in_use: Sequence[Path]) -> None:
        """Raise ConfigError if an empty database was used before."""
        if in_use:
            named = ", ".join(map(str, in_use))
            raise ConfigError(
                f"the database {self._backend.name} is empty, but was used before ({named}): restore a backup of the "
                f"database, or start with an empty store: move {named} away"
            )

    def _create_tables(self, connection: Connection) -> None:
        # Another process may have created them meanwhile.
        found = store_version(connection, self._backend.url)
        if found is not None:
            check_usable(found, self._backend.url)
            return
        there, tables = schema.found_tables(connection), schema.tables()
        for name in sorted(there.keys() & tables.keys()):
            if not {column.name for column in tables[name]} <= set(there[name]):
                raise ConfigError(
                    f"the database {self._backend.name} has a table {name} of another program: use an empty database"
                )
        schema.create_tables(connection)

    def _check_version(self, connection: Connection) -> None:
        found = store_version(connection, self._backend.url)
        check_usable(found, self._backend.url)
        if found is None:
            raise ConfigError("the database is empty: `portico serve` creates the tables")

    async def _check_unused(self) -> None:
        exclusion = await self._exclude()
        if exclusion is None:
            raise self._used("a daemon")
        exclusion.release()

    async def _exclude(self) -> Exclusion | None:
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._backend.exclude)

    def _used(self, daemon: str) -> ConfigError:
        name = self._backend.name
        return ConfigError(
            f"{daemon} uses the database {name}, or another program does, such as `portico store copy`: stop it first"
        )
