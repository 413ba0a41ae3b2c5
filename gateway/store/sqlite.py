"""What is specific to SQLite: the file in the data directory, the settings of a connection, transactions, and what its errors
mean.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from gateway.errors import StoreUnavailable
from gateway.private_files import correct_file, private_file
from gateway.store.backend import Exclusion, Failure, ThreadConnections
from gateway.store.sql import Connection, Dialect
from gateway.store.times import STORE_TIMES, StoreTimes

BUSY_SECONDS = 10
"""How long a statement waits for a lock: another process (`portico audit`) may hold it for a moment."""
PRAGMAS = (f"busy_timeout={BUSY_SECONDS * 1000}", "journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON")
"""WAL with synchronous=NORMAL keeps every commit when the process is killed, and does not need an fsync for each of them."""
FREE_SHARE = 0.1
"""Share of a database file that stays free for later rows. What is free beyond it is returned to the file system."""
RELEASED_PAGES = 100
"""Pages that one transaction moves at most, to release as many at the end of the file: some milliseconds."""


def sqlite_url(data_dir: Path) -> str:
    """Returns the URL of the SQLite file in a data directory."""
    return f"sqlite:///{data_dir / 'portico.db'}"


def checkpoint(connection: Connection) -> None:
    """Moves what is in the write-ahead log to the database file. Call it outside of a transaction."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def surplus_pages(connection: Connection) -> int:
    """Returns how many free pages of a database file are more than FREE_SHARE of it."""
    free, pages = (int(connection.value(f"PRAGMA {name}")) for name in ("freelist_count", "page_count"))
    return max(free - int(pages * FREE_SHARE), 0)


def release_pages(connection: Connection) -> bool:
    """Removes RELEASED_PAGES surplus pages from a database file at most, in a transaction. Returns whether it has removed any.

    The file becomes smaller with the next checkpoint.
    """
    surplus = surplus_pages(connection)
    before = connection.value("PRAGMA page_count")
    for _ in range(min(surplus, RELEASED_PAGES)):
        # One at a time: Python's sqlite3 executes only the first step of a statement without columns, which removes one page.
        connection.execute("PRAGMA incremental_vacuum(1)")
    # Where the disk is full, it removes none and reports no error.
    return bool(connection.value("PRAGMA page_count") < before)


_RESTORE = "restore a backup, or move it and the files beside it with the same beginning away to start with an empty store"
_ADVICE = {
    sqlite3.SQLITE_NOTADB: _RESTORE,
    sqlite3.SQLITE_CORRUPT: _RESTORE,
    sqlite3.SQLITE_READONLY: "make the file and its folder writable for this user",
    sqlite3.SQLITE_PERM: "make the file and its folder writable for this user",
    sqlite3.SQLITE_CANTOPEN: "the file and its folder must be readable and writable for this user",
    sqlite3.SQLITE_FULL: "free space on its disk",
    sqlite3.SQLITE_IOERR: "check its disk, and whether it has free space",
    sqlite3.SQLITE_BUSY: "end the process that has locked it",
}
_FAILURES = {
    sqlite3.SQLITE_BUSY: Failure.LOCKED,
    sqlite3.SQLITE_FULL: Failure.FULL,
    sqlite3.SQLITE_CORRUPT: Failure.DAMAGED,
    sqlite3.SQLITE_NOTADB: Failure.DAMAGED,
}
_NOTHING_EXCLUDED = Exclusion(lambda: True, lambda: None)
"""Nobody can write it anyway."""


class SqliteBackend:
    """A database file, or a database in memory."""

    dialect: Dialect = "sqlite"
    is_pooled = False

    def __init__(self, file: str | None, times: StoreTimes = STORE_TIMES) -> None:
        self.times = times
        self._file = Path(file) if file is not None else None
        self.folder = self._file.parent if self._file is not None else None
        self.name = file or "sqlite://"
        self.url = f"sqlite:///{file or ''}"
        self.single_connection = file is None
        self._alone = False
        self._connections = ThreadConnections(self.connect)

    def connect(self) -> Connection:
        # Connections are used by one thread at a time. All are closed by another one.
        driver = sqlite3.connect(self._file or ":memory:", isolation_level=None, check_same_thread=False)
        connection = Connection(driver, "sqlite")
        try:
            self._configure(connection)
        except BaseException:
            driver.close()
            raise
        return connection

    def _configure(self, connection: Connection) -> None:
        if self._alone:
            # The file is locked by the first access, which would wait for whoever uses it.
            for pragma in ("busy_timeout=0", "locking_mode=EXCLUSIVE"):
                connection.execute(f"PRAGMA {pragma}")
        if connection.value("PRAGMA page_count") == 0:
            # Only a database without pages takes it, and every connection that sets it begins a write.
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        for pragma in PRAGMAS:
            self._set(connection, pragma)

    def _set(self, connection: Connection, pragma: str) -> None:
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                connection.execute(f"PRAGMA {pragma}")
                return
            except sqlite3.OperationalError as error:
                # The busy timeout does not count for the change to WAL: it reads first, and two that have read would wait for
                # each other (sqlite.org/c3ref/busy_handler.html). Programs that create a database together meet there.
                if _code(error) != sqlite3.SQLITE_BUSY or self._alone or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        yield self._connections.get()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        connection = self._connections.get()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            self._roll_back(connection)
            raise
        self.committed()

    creation = transaction

    def _roll_back(self, connection: Connection) -> None:
        try:
            # SQLite ends a transaction by itself with some errors.
            if connection.driver.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            # What is left would be stored by the next commit.
            self._connections.drop(connection)

    @contextmanager
    def read_only(self) -> Iterator[Connection]:
        if self._file is None:
            with self.reading() as connection:
                yield connection
            return
        before = _state(self._file)
        with closing(_read_only_connection(self._file)) as driver:
            # One state of the database for all that is read.
            driver.execute("BEGIN")
            yield Connection(driver, "sqlite")
        if not before.has_log and _state(self._file) != before:
            raise StoreUnavailable("another program has written it while it was read: give the command again")

    def before_connecting(self) -> None:
        if self._file is None:
            return
        # SQLite gives the write-ahead log and the shared memory file the mode of the database. It reports a file that cannot be
        # created.
        with suppress(OSError):
            os.close(private_file(self._file, os.O_RDWR))
        for beside in ("", "-wal", "-shm", "-journal"):
            correct_file(Path(f"{self._file}{beside}"))

    def claim(self, *, shared: bool, node: str | None = None) -> bool:
        # The lock of the data directory does it.
        return False

    def use_alone(self) -> None:
        # A second connection of this process would be locked out, too.
        self._alone = self.single_connection = True

    def exclude(self) -> Exclusion | None:
        # A daemon with `store.url` has its lock in another folder.
        self._connections.close()
        if self.single_connection or self._file is None or not self._file.exists():
            return _NOTHING_EXCLUDED
        try:
            # Succeeds only where no other connection is open, also one that writes nothing.
            with closing(_unlocked_connection(self._file)) as connection:
                connection.execute("PRAGMA locking_mode=EXCLUSIVE").close()
                connection.execute("BEGIN IMMEDIATE").close()
                connection.execute("ROLLBACK").close()
            writing = _unlocked_connection(self._file)
            writing.execute("BEGIN IMMEDIATE").close()
        except sqlite3.OperationalError as error:
            if _code(error) == sqlite3.SQLITE_BUSY:
                return None
            if _code(error) == sqlite3.SQLITE_READONLY:
                return _NOTHING_EXCLUDED
            raise
        return Exclusion(lambda: True, writing.close)

    def checkpoint(self, connection: Connection) -> None:
        checkpoint(connection)

    def committed(self) -> None:
        pass

    def was_committed(self) -> bool:
        raise NotImplementedError("no connection of SQLite is lost")

    def has_free_space(self, connection: Connection) -> bool:
        return surplus_pages(connection) > 0

    def release_space(self, connection: Connection) -> bool:
        return release_pages(connection)

    def failure(self, error: BaseException | None) -> Failure | None:
        if not isinstance(error, sqlite3.Error):
            return None
        if (found := _FAILURES.get(_code(error))) is not None:
            return found
        if isinstance(error, sqlite3.IntegrityError):
            return Failure.INTEGRITY
        return Failure.UNAVAILABLE if isinstance(error, sqlite3.OperationalError) else Failure.OTHER

    def explain(self, error: BaseException | None) -> str | None:
        if not isinstance(error, sqlite3.Error):
            return None
        advice = _ADVICE.get(_code(error))
        # The text of a message does not belong in a log.
        cause = str(error).split(" with text ", 1)[0]
        return f"the database {self.name} cannot be used ({cause}): {advice}" if advice else None

    def is_rolled_back(self, error: BaseException) -> bool:
        # The frame of the write-ahead log that makes it a commit is written last.
        return self.failure(error) is Failure.FULL

    def close(self) -> None:
        self._connections.close()


def _code(error: sqlite3.Error) -> int:
    if str(error).startswith("Could not decode to UTF-8"):
        # Of the module itself, which gives it no code.
        return sqlite3.SQLITE_CORRUPT
    # The low byte is the primary result code (sqlite.org/rescode.html).
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def _unlocked_connection(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=0.0, isolation_level=None, check_same_thread=False)


def _read_only_connection(file: Path) -> sqlite3.Connection:
    """Open a database file without changing it or the files beside it.

    An ordinary connection writes to them: the last one that closes moves the write-ahead log to the database. A read-only one
    would create a missing log, and leave it behind.
    """
    if not _state(file).has_log:
        # No other program has it open.
        mode = "immutable=1"
    elif Path(f"{file}-shm").exists():
        mode = "readonly_shm=1"
    else:
        # Somebody has copied two of three files. SQLite creates the third one, the index of the log.
        mode = ""
    return sqlite3.connect(
        f"{file.absolute().as_uri()}?mode=ro&{mode}", uri=True, timeout=1.0, isolation_level=None, check_same_thread=False
    )


class _FileState(NamedTuple):
    """What changes when a program begins to write a database file."""

    has_log: bool
    size: int
    changed_at: int


def _state(file: Path) -> _FileState:
    found = file.stat()
    return _FileState(Path(f"{file}-wal").exists(), found.st_size, found.st_mtime_ns)
