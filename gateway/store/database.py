"""Database: SQLAlchemy's synchronous engine, one thread for writes and a few for reads. It knows no query but its own version."""

from __future__ import annotations

import asyncio
import logging
import random
import stat
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, insert, inspect, update
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from gateway.errors import ConfigError, LeaseLost, StoreAbandoned, StoreFull, StoreUnavailable
from gateway.store import schema
from gateway.store.backend import Backend, Exclusion
from gateway.store.lease_checks import leases_in_force
from gateway.store.node_ids import write_first
from gateway.store.urls import backend_of
from gateway.store.versions import check_usable, store_version

log = logging.getLogger(__name__)

Result = TypeVar("Result")
RequiredLease = tuple[str, str, int]
"""The log, the node and the token of the lease that a write requires."""
Leases = Mapping[str, tuple[str, int]]
"""The node and the token of each log."""
Outcome = tuple[Any, BaseException | None]

GROUP_WRITES = 64
"""Writes that are committed together at most."""
ABANDONED = "the gateway is shutting down, and its store does not answer"
READERS = 3
"""Threads for reads, each with a connection of its own (about 0.2 MB with SQLite). They start when they are needed."""
READ_TIMEOUT = 5.0
"""Seconds for which a read is repeated whose connection is lost: the restart of a server takes one or two."""
READ_PAUSE = 0.2
SILENT = 10.0
"""Seconds without a heartbeat after which a node is taken for dead."""
LOSSES = 2
"""Times that a transaction is executed whose connection is lost before it is stored."""
CONFLICTS = 5
"""Times that a transaction is executed which other connections are in the way of: two that wait for each other, of which the
database ends one. It has changed nothing then.
"""
CONFLICT_PAUSE = 0.02
"""Seconds before it is executed again, twice as long each time, and a random part of that: two writers go on in turn."""


class _Write:
    """A queued write: a function that takes a connection, its result, and the lease without which it is not executed."""

    __slots__ = ("done", "log_id", "required", "transaction")

    def __init__(
        self,
        transaction: Callable[[Connection], Any] | None,
        done: asyncio.Future[Any],
        required: RequiredLease | None,
        log_id: str | None,
    ) -> None:
        self.transaction, self.done, self.required = transaction, done, required
        self.log_id = log_id if required is None else required[0]
        """The log that it changes, where other nodes are to be notified of that."""

    def execute(self, connection: Connection, leases: Leases) -> Outcome:
        """The result, or LeaseLost. Raises what the function raises."""
        if self.transaction is None:
            return None, None
        if self.required is not None and leases.get(self.required[0]) != self.required[1:]:
            return None, LeaseLost(self.required[0])
        return self.transaction(connection), None


@dataclass(frozen=True, slots=True)
class _Doubt:
    """Writes whose transaction may be stored: their outcomes if it is, and the error if it is not."""

    writes: Sequence[_Write]
    outcomes: Sequence[Outcome]
    error: BaseException


class _OutcomeUnknown(Exception):
    """The database does not say whether an executed transaction is stored. `result` is that of the transaction."""

    def __init__(self, result: Any, error: BaseException) -> None:
        self.result, self.error = result, error


class Database:
    """Runs functions that take a connection on threads, in transactions. Open with `await open(url)`.

    Writes that are queued when the writer thread is free are executed in one transaction (group commit). If one of them raises,
    it is rolled back, and each is executed in a transaction of its own: a write that fails does not affect the others. Only where
    the commit fails for another reason than a full disk, or the database is locked, all of them fail.

    A write returns or raises only when it is known whether it is stored. If a server does not answer a commit and cannot be
    asked for its outcome, the writes of that transaction wait until it can. All other writes fail meanwhile.

    The asyncio engine of SQLAlchemy is not used: it needs a switch of threads for each statement, where this needs one for
    each transaction, and it imports the ORM (docs/decisions/store-engine.md).
    """

    problem: str | None = None
    """What is wrong with the data; None if nothing is known."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self._engine = backend, backend.engine
        self._explains = False
        # One writer: SQLite has one write lock, and a queue in front of it is fair, which its busy handler is not.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._readers = (
            self._writer if backend.single_connection else ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        )
        self._write_connection: Connection | None = None
        self._queue: deque[_Write] = deque()
        self._queue_lock = threading.Lock()
        self._draining = False
        self._doubt: _Doubt | None = None
        self.on_doubt: Callable[[], object] = lambda: None
        """Called in the event loop when writes are in doubt."""
        self._waiting: set[asyncio.Future[Any]] = set()
        self.abandoned = False
        """Whether `abandon` was called: a thread may still be blocked by the database."""

    @classmethod
    async def open(cls, url: str, in_use: Sequence[Path] = ()) -> Self:
        """Connects, and creates the tables in an empty database.

        Raises ConfigError if the database is of another version, with nothing in it changed, if it cannot be used at all, or if
        it is empty although it was used before: `in_use` are files and folders that are there only if it was.
        """
        return await cls._open(url, in_use)

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
    ) -> Self:
        """Opens a database, creates its tables if it is empty, and claims it, `shared` or not; None: without a claim.

        `node` is the id of the node that opens it: another one with that id is dead after `silent` seconds without a heartbeat.
        With `for_copy` it is the target of a copy.
        """
        backend = backend_of(url)
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
                        await database.write(_check_version)
                    else:
                        await write_first(partial(database.write, _check_version), database.read, node, silent)
            except (SQLAlchemyError, StoreUnavailable) as failure:
                error = failure.__cause__ if isinstance(failure, StoreUnavailable) else failure
                if claims and isinstance(error, SQLAlchemyError) and database._is_claimed(error):
                    other = "a daemon without [node]" if shared else "a daemon" if for_copy else "another daemon"
                    raise database._used(other) from failure
                raise
        return database

    @classmethod
    async def open_alone(cls, url: str, in_use: Sequence[Path] = ()) -> Self:
        """Opens a database as `open`, which no other daemon may use until it is closed. Raises ConfigError if one does.

        An SQLite file has no lock of its own: that of its data directory is held by the caller.
        """
        return await cls._open(url, in_use, shared=False)

    @classmethod
    async def open_as_node(cls, url: str, node: str | None = None, silent: float = SILENT) -> Self:
        """Opens a database as `open_alone`, but other nodes may use it too. `node` is the id of this one.

        Raises NodeRuns if a daemon with the same id runs. One that keeps its connection to the database without a heartbeat for
        `silent` seconds does not: its connection is ended. From then on no other program gets the id until the database is closed
        or the connection lost. If one has got it, all writes raise NodeIdTaken.
        """
        return await cls._open(url, shared=True, node=node, silent=silent)

    @classmethod
    async def open_for_copy(cls, url: str) -> Self:
        """Opens a database as `open_alone`, but no other program may use it, and nothing waits for one that does."""
        return await cls._open(url, shared=False, for_copy=True)

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

    def _is_claimed(self, error: SQLAlchemyError) -> bool:
        return self._backend.is_locked(error.__cause__)

    @classmethod
    async def open_unchanged(cls, url: str) -> Self:
        """Connects, and creates nothing. Raises ConfigError if the database is empty or of another version."""
        database = cls(backend_of(url))
        async with database._opening():
            database._check_exists()
            await asyncio.get_running_loop().run_in_executor(database._readers, database._check_file)
            await database.read(_check_version)
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

    def _check_exists(self) -> None:
        """Raises ConfigError if there is no database file: connecting would create it."""
        if self._is_missing():
            raise ConfigError(f"there is no database in {self._backend.name}: check the path; `portico serve` creates it")

    def _check_file(self) -> None:
        """Raises ConfigError if a database file is of another version, before a connection changes the file."""
        if self._backend.folder is None or self._is_missing():
            return
        # What cannot be read is reported by the connection that is opened next.
        with suppress(SQLAlchemyError, StoreUnavailable, OSError), self._backend.read_only() as connection:
            check_usable(connection, store_version(connection))

    def _is_missing(self) -> bool:
        """Whether the database is a file that does not exist, or has no content yet."""
        if self._backend.folder is None:
            return False
        try:
            found = Path(self._backend.name).stat()
        except OSError as error:
            return isinstance(error, FileNotFoundError)
        return stat.S_ISREG(found.st_mode) and found.st_size == 0

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
            explained = self._backend.explain(error.__cause__)
            first_line = str(error).split("\n", 1)[0]
            raise ConfigError(explained or f"the database {self._backend.name} cannot be used: {first_line}") from error
        except OSError as error:
            if error.filename is None:
                raise
            raise ConfigError(f"{error.filename} cannot be used: {error.strerror}") from error
        finally:
            self._explains = False

    def _prepare(self, in_use: Sequence[Path]) -> None:
        backend = self._backend
        if self._is_missing():
            # Before anything is created.
            self._check_unused_before(in_use)
        backend.before_connecting()
        with self._engine.connect() as connection:
            found = store_version(connection)
            if found is None:
                self._check_unused_before(in_use)
            check_usable(connection, found)
        if found is None:
            self._create()

    def _check_unused_before(self, in_use: Sequence[Path]) -> None:
        """Raises ConfigError if an empty database was used before."""
        if in_use:
            named = ", ".join(map(str, in_use))
            raise ConfigError(
                f"the database {self._engine.url.database} is empty, but was used before ({named}): restore a backup of the "
                f"database, or start with an empty store: move {named} away"
            )

    def _create(self) -> None:
        def create(connection: Connection) -> None:
            self._backend.begin_creation(connection)
            _create_tables(connection, self._backend.name)

        self._transaction(create)
        with self._engine.connect() as connection:
            # So that a database whose log is removed has its tables.
            self._backend.checkpoint(connection)

    async def close(self) -> None:
        """Waits for the queued writes and closes all connections.

        After `abandon` it waits for nothing, and only stops the threads.
        """
        if not self.abandoned:
            with suppress(StoreAbandoned):
                await self._queued(None)
        if self._doubt is not None:
            # Nobody is to wait for it. The next start finds what is stored.
            self.abandon()
        if self.abandoned:
            for threads in (self._writer, self._readers):
                threads.shutdown(wait=False, cancel_futures=True)
            # The connections are closed once the threads have ended, if the process still runs then.
            threading.Thread(target=self._close, name="store-closer", daemon=True).start()
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
        self._backend.close()
        self._engine.dispose()

    async def write(
        self,
        transaction: Callable[[Connection], Result],
        required: RequiredLease | None = None,
        log_id: str | None = None,
    ) -> Result:
        """Runs a function in a transaction, after all writes that were queued before; committed when this returns.

        Cancelling the caller does not cancel the write: it is queued before the first `await`, and is completed. Raises
        StoreUnavailable where the database cannot write now, as with a lock of another process, StoreFull with a full disk, and
        LeaseLost, with nothing changed, where the `required` lease is not in force. Other nodes are notified that the log of the
        lease, or `log_id`, has changed.
        """
        if self.abandoned:
            raise StoreAbandoned(ABANDONED)
        try:
            result: Result = await self._queued(transaction, required, log_id)
            return result
        except DBAPIError as error:
            if isinstance(error, OperationalError) or self._backend.is_lost(error):
                kind = StoreFull if self._backend.is_full(error.__cause__) else StoreUnavailable
                raise kind(f"the store cannot be written: {error.orig}") from error
            raise

    @property
    def in_doubt(self) -> bool:
        """Whether a server that does not answer knows alone which writes are stored."""
        return self._doubt is not None

    def abandon(self) -> None:
        """Fails the writes that are waited for, and all later ones, with StoreAbandoned: the process is to exit soon.

        For a database that is locked or whose disk does not answer. A write that has begun may still be completed. Idempotent.
        """
        self.abandoned = True
        for done in self._waiting:
            if not done.done():
                done.set_exception(StoreAbandoned(ABANDONED))

    async def _queued(
        self,
        transaction: Callable[[Connection], Any] | None,
        required: RequiredLease | None = None,
        log_id: str | None = None,
    ) -> Any:
        """Queue a write, and wait for its result. With None, wait for the writes that are queued."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(done)
        try:
            with self._queue_lock:
                self._queue.append(_Write(transaction, done, required, log_id))
                if not self._draining:
                    self._writer.submit(self._write_group)
                    self._draining = True
            return await done
        finally:
            self._waiting.discard(done)

    def _write_group(self) -> None:
        """Execute what is queued, in the writer thread."""
        with self._queue_lock:
            group = [self._queue.popleft() for _ in range(min(len(self._queue), GROUP_WRITES))]
        changed = self._finish(group, self._outcomes(group))
        with self._queue_lock:
            self._draining = bool(self._queue) or (self._doubt is not None and not self.abandoned)
        if self._draining:
            try:
                # Not in a loop: with a database in memory, this thread executes the reads, too.
                self._writer.submit(self._write_group)
            except RuntimeError:
                # The thread ends after this.
                self._write_group()
        if changed:
            # Last: the prompt of a turn waits for its commit, and a thread is woken for this.
            self._backend.notify()

    def _finish(self, group: Sequence[_Write], outcomes: Sequence[Outcome | None]) -> bool:
        """End the waits for the writes that have an outcome. Returns whether other nodes are to be notified of a change."""
        changed = _changed(group, outcomes)
        if changed:
            self._backend.note_changed(changed)
        # The loop may be closed.
        with suppress(RuntimeError):
            if group:
                group[0].done.get_loop().call_soon_threadsafe(_finish, group, outcomes)
        return bool(changed)

    def _settle(self) -> None:
        """End the writes in doubt if the database says whether they are stored. Raises its error if it does not answer."""
        if (doubt := self._doubt) is None:
            return
        stored = self._backend.was_committed()
        self._doubt = None
        log.warning("the store answers again: the writes that were in doubt are %s", "stored" if stored else "not stored")
        if self._finish(doubt.writes, doubt.outcomes if stored else [(None, doubt.error)] * len(doubt.writes)):
            self._backend.notify()

    def _set_doubt(self, writes: Sequence[_Write], outcomes: Sequence[Outcome], error: BaseException) -> list[None]:
        log.error("the store does not say whether writes are stored, and is asked until it does: %s", error)
        self._doubt = _Doubt(writes, outcomes, error)
        # The loop may be closed.
        with suppress(RuntimeError):
            writes[0].done.get_loop().call_soon_threadsafe(self.on_doubt)
        return [None] * len(writes)

    def _outcomes(self, group: Sequence[_Write]) -> Sequence[Outcome | None]:
        """The result or the error of each write; None for one in doubt."""
        if self.abandoned:
            return [(None, StoreAbandoned(ABANDONED) if write.transaction else None) for write in group]
        try:
            self._settle()
        except SQLAlchemyError as error:
            return [(None, error if write.transaction else None) for write in group]
        return self._executed(group)

    def _executed(self, group: Sequence[_Write]) -> Sequence[Outcome | None]:
        committing = False

        def all_of_them(connection: Connection) -> list[Outcome]:
            nonlocal committing
            leases = _required_leases(connection, group)
            outcomes = [write.execute(connection, leases) for write in group]
            committing = True
            return outcomes

        if sum(write.transaction is not None for write in group) > 1:
            try:
                return self._write(all_of_them)
            except _OutcomeUnknown as unknown:
                return self._set_doubt(group, unknown.result, unknown.error)
            except BaseException as error:
                # Each of them would wait for the lock again. A commit that failed may be stored all the same. If it is not, one
                # write may be the cause: where the disk is full, a smaller one may have space.
                locked, rolled_back = (_is(kind, error) for kind in (self._backend.is_locked, self._backend.is_rolled_back))
                if locked or self._backend.is_lost(error) or (committing and not rolled_back):
                    return [(None, error)] * len(group)
        return [self._outcome(write) for write in group]

    def _outcome(self, write: _Write) -> Outcome | None:
        if write.transaction is None:
            return None, None
        if self._doubt is not None:
            return None, self._doubt.error
        try:
            return self._write(lambda connection: write.execute(connection, _required_leases(connection, [write])))
        except _OutcomeUnknown as unknown:
            (outcome,) = self._set_doubt([write], [unknown.result], unknown.error)
            return outcome
        except BaseException as error:
            return None, error

    async def read(self, query: Callable[[Connection], Result]) -> Result:
        """Runs a function that only reads. It sees every write that has returned. All rows must be fetched within it.

        Raises StoreUnavailable if the server of the database cannot be reached for READ_TIMEOUT.
        """
        loop, deadline = asyncio.get_running_loop(), 0.0
        while True:
            try:
                return await loop.run_in_executor(self._readers, self._read, query)
            except DBAPIError as error:
                if not self._backend.is_lost(error):
                    raise
                deadline = deadline or loop.time() + READ_TIMEOUT
                if self._explains or self.abandoned or loop.time() > deadline:
                    raise StoreUnavailable(f"the store cannot be read: {error.orig}") from error
            await asyncio.sleep(READ_PAUSE)

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

    @asynccontextmanager
    async def locked(self, key: int) -> AsyncIterator[bool]:
        """Whether this process got the lock of a key, which no other process gets until this context ends or its connection is
        lost. It does not wait for the lock. The one process that uses an SQLite file always gets it.

        Raises StoreUnavailable.
        """
        release = await self.read(lambda _: self._backend.try_lock(key))
        try:
            yield release is not None
        finally:
            if release is not None:
                # Not in a thread, for which a task that is cancelled would not wait. It sends one message.
                release()

    def _write(self, transaction: Callable[[Connection], Result]) -> Result:
        """Execute a transaction that writes.

        It is executed again if the connection was lost and it is not stored, and if others were in the way: LOSSES and CONFLICTS
        times at most. Raises _OutcomeUnknown if the database does not say whether it is stored.
        """
        executed: list[Result] = []

        def recorded(connection: Connection) -> None:
            self._backend.begin(connection)
            executed.append(transaction(connection))

        conflicts = losses = 0
        with self._noticed_damage():
            while True:
                try:
                    self._transaction(recorded)
                    break
                except SQLAlchemyError as error:
                    conflict = _is(self._backend.is_conflict, error)
                    if self.abandoned or not (conflict or self._backend.is_lost(error)):
                        raise
                    # Each time: a commit whose outcome is not asked for would be taken for a later one.
                    if executed and not conflict and self._was_committed(executed[0], error):
                        break
                    conflicts, losses = conflicts + conflict, losses + (not conflict)
                    if conflicts == CONFLICTS or losses == LOSSES:
                        raise
                    if conflict:
                        time.sleep(CONFLICT_PAUSE * 2**conflicts * random.random())
                    executed.clear()
        return executed[0]

    def _was_committed(self, result: object, error: SQLAlchemyError) -> bool:
        try:
            return self._backend.was_committed()
        except SQLAlchemyError as unanswered:
            raise _OutcomeUnknown(result, error) from unanswered

    def _transaction(self, transaction: Callable[[Connection], None]) -> None:
        connection = self._write_connection
        if connection is None:
            # It is kept: the pool needs 100 us of a turn's first transaction.
            connection = self._write_connection = self._engine.connect()
        try:
            with connection.begin():
                transaction(connection)
        except BaseException:
            # A rollback that failed has left what the next commit would store.
            if not self._backend.is_reusable(connection):
                self._release_write_connection()
            raise
        self._backend.committed()

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
            if self.problem is None and self._backend.is_damage(error.__cause__):
                self.problem = "the database is damaged: stop the gateway and restore a backup; the log has details"
                if not self._explains:
                    log.error("%s", self._backend.explain(error.__cause__))
            raise

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

    def listen(self, notified: Callable[[Sequence[str] | None], None], stopped: threading.Event) -> None:
        """Calls `notified` with the ids of logs that nodes have written, until `stopped` is set: Backend.listen. It blocks."""
        self._backend.listen(notified, stopped)

    def stop_listening(self) -> None:
        """Wakes the listener, so that it returns if it is stopped."""
        self._backend.stop_listening()

    async def touch(self) -> None:
        """Writes a value that is there already. Raises what any other write would raise."""
        version = schema.store_version
        await self.write(lambda connection: connection.execute(update(version).values(version=version.c.version)).close())


def _required_leases(connection: Connection, group: Sequence[_Write]) -> Leases:
    """The leases in force of the logs that a group of writes requires."""
    log_ids = [write.required[0] for write in group if write.required is not None]
    return leases_in_force(connection, log_ids) if log_ids else {}


def _changed(group: Sequence[_Write], outcomes: Sequence[Outcome | None]) -> Sequence[str]:
    """The logs of those of a group of writes that are stored, which other nodes of a cluster may follow."""
    stored = (write.log_id for write, end in zip(group, outcomes, strict=True) if end is not None and end[1] is None)
    return list({log_id: None for log_id in stored if log_id is not None})


def _finish(group: Sequence[_Write], outcomes: Sequence[Outcome | None]) -> None:
    for write, outcome in zip(group, outcomes, strict=True):
        # Their callers may have been cancelled.
        if outcome is None or write.done.done():
            continue
        result, error = outcome
        if error is None:
            write.done.set_result(result)
        elif isinstance(error, StopIteration):
            # A future does not accept it, and the writes after this one would not be completed.
            write.done.set_exception(RuntimeError("a write has raised StopIteration"))
        else:
            write.done.set_exception(error)


def _is(kind: Callable[[BaseException | None], bool], error: BaseException) -> bool:
    return isinstance(error, SQLAlchemyError) and kind(error.__cause__)


def _create_tables(connection: Connection, name: str) -> None:
    # Another process may have created them before this one got the lock.
    found = store_version(connection)
    if found is not None:
        check_usable(connection, found)
        return
    _check_no_other_tables(connection, name)
    schema.metadata.create_all(connection)
    connection.execute(insert(schema.store_version).values(version=schema.VERSION))


def _check_no_other_tables(connection: Connection, name: str) -> None:
    """Raises ConfigError if a database without a store has a table with the name of one of a store, but other columns."""
    found = inspect(connection)
    for table in sorted({*found.get_table_names(), *found.get_view_names()} & set(schema.metadata.tables)):
        columns = {column["name"] for column in found.get_columns(table)}
        if not columns >= set(schema.metadata.tables[table].columns.keys()):
            raise ConfigError(f"the database {name} has a table {table} of another program: use an empty database")


def _check_version(connection: Connection) -> None:
    found = store_version(connection)
    check_usable(connection, found)
    if found is None:
        raise ConfigError("the database is empty: `portico serve` creates the tables")
