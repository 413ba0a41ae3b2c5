"""What is specific to SQLite: the file in the data directory, the settings of a connection, an explicit transaction, and what
its errors mean.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool, StaticPool

from gateway.errors import StoreUnavailable
from gateway.private_files import correct_file, private_file
from gateway.store.backend import Exclusion

PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=10000")
"""WAL with synchronous=NORMAL keeps every commit when the process is killed, and does not need an fsync for each of them.

The busy timeout is in milliseconds: another process (`portico audit`) may hold the lock for a moment.
"""


FREE_SHARE = 0.1
"""Share of a database file that stays free for later rows. What is free beyond it is returned to the file system."""
RELEASED_PAGES = 100
"""Pages that one transaction moves at most, to release as many at the end of the file: some milliseconds."""


def sqlite_url(data_dir: Path) -> str:
    """Returns the URL of the SQLite file in a data directory."""
    return f"sqlite:///{data_dir / 'portico.db'}"


def make_private(engine: Engine) -> None:
    """Creates the file of an SQLite database with mode 0600, if it is missing, and sets that mode for it and the files beside it.

    SQLite gives the write-ahead log and the shared memory file the mode of the database. Raises ConfigError if other users keep
    access to one of them. SQLite reports a file that cannot be created.
    """
    file = database_file(engine)
    if file is not None:
        with suppress(OSError):
            os.close(private_file(file, os.O_RDWR))
        for beside in ("", "-wal", "-shm", "-journal"):
            correct_file(Path(f"{file}{beside}"))


def configure_sqlite(engine: Engine) -> None:
    """Sets PRAGMAS on every connection that the engine opens."""
    event.listen(engine, "connect", _on_connect)


def begin_immediately(connection: Connection) -> None:
    """Takes the write lock now, so that the creation of all tables is one transaction.

    Python's sqlite3 begins a transaction before INSERT, UPDATE and DELETE only: it would commit each CREATE by itself.
    """
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _on_connect(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    if cursor.execute("PRAGMA page_count").fetchone()[0] == 0:
        # Only a database without pages takes it, and every connection that sets it begins a write.
        cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
    for pragma in PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _lock_file(connection: Any, _: object) -> None:
    # It is locked by the first access, which would wait for whoever uses it.
    for pragma in ("busy_timeout=0", "locking_mode=EXCLUSIVE"):
        connection.execute(f"PRAGMA {pragma}").close()


def checkpoint(connection: Connection) -> None:
    """Moves what is in the write-ahead log to the database file. Call it outside of a transaction."""
    connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").close()


def surplus_pages(connection: Connection) -> int:
    """Returns how many free pages of a database file are more than FREE_SHARE of it."""
    driver = connection.connection.driver_connection
    if driver is None:
        return 0
    [free], [pages] = (driver.execute(f"PRAGMA {name}").fetchone() for name in ("freelist_count", "page_count"))
    return max(int(free) - int(pages * FREE_SHARE), 0)


def release_pages(connection: Connection) -> bool:
    """Removes RELEASED_PAGES surplus pages from a database file at most. Returns whether it has removed any.

    The file becomes smaller with the next checkpoint.
    """
    surplus, driver = surplus_pages(connection), connection.connection.driver_connection
    if not surplus or driver is None:
        return False
    [before] = driver.execute("PRAGMA page_count").fetchone()
    if not driver.in_transaction:
        begin_immediately(connection)
    for _ in range(min(surplus, RELEASED_PAGES)):
        # One at a time: Python's sqlite3 executes only the first step of a statement without columns, which removes one page.
        driver.execute("PRAGMA incremental_vacuum(1)").close()
    # Where the disk is full, it removes none and reports no error.
    [after] = driver.execute("PRAGMA page_count").fetchone()
    return bool(after < before)


def explain_sqlite_error(error: BaseException | None, file: str) -> str | None:
    """Returns what an error of a database file means and what to do, in one line; None for an error that has other causes."""
    if not isinstance(error, sqlite3.Error):
        return None
    advice = _ADVICE.get(_code(error))
    # The text of a message does not belong in a log.
    cause = str(error).split(" with text ", 1)[0]
    return f"the database {file} cannot be used ({cause}): {advice}" if advice else None


def is_damage(error: BaseException | None) -> bool:
    """Whether an error shows that the content of a database file is damaged."""
    return isinstance(error, sqlite3.Error) and _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_locked(error: BaseException | None) -> bool:
    """Whether an error is that of a database file that another process has locked for the whole busy timeout."""
    return isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_BUSY


def is_full(error: BaseException | None) -> bool:
    """Whether an error is that of a database file whose disk has no space for what is written."""
    return isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_FULL


def _code(error: sqlite3.Error) -> int:
    if str(error).startswith("Could not decode to UTF-8"):
        # Of the module itself, which gives it no code.
        return sqlite3.SQLITE_CORRUPT
    # The low byte is the primary result code (sqlite.org/rescode.html).
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


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


_NOTHING_EXCLUDED = Exclusion(lambda: True, lambda: None)
"""Nobody can write it anyway."""


class SqliteBackend:
    """A database file, or a database in memory."""

    def __init__(self, url: URL) -> None:
        self.name = url.database or url.render_as_string()
        self.single_connection = url.database in (None, "", ":memory:")
        self.engine = self._new_engine(url)
        configure_sqlite(self.engine)
        file = database_file(self.engine)
        self.folder = file.parent if file is not None else None

    def _new_engine(self, url: URL) -> Engine:
        # Messages do not belong in a log, which is where the values of a failing statement would be written.
        return create_engine(
            url,
            hide_parameters=True,
            # Connections are used by one thread at a time, not always by the same one.
            connect_args={"check_same_thread": False},
            **({"poolclass": StaticPool} if self.single_connection else {}),
        )

    @contextmanager
    def read_only(self) -> Iterator[Connection]:
        file = database_file(self.engine)
        if file is None:
            with self.engine.connect() as connection:
                yield connection
            return
        before = _state(file)
        connect = partial(_read_only_connection, file)
        engine = create_engine(self.engine.url, hide_parameters=True, creator=connect, poolclass=NullPool)
        with engine.connect() as connection:
            # One state of the database for all that is read.
            connection.exec_driver_sql("BEGIN").close()
            yield connection
        if not before.has_log and _state(file) != before:
            raise StoreUnavailable("another program has written it while it was read: give the command again")

    def before_connecting(self) -> None:
        make_private(self.engine)

    def claim(self, *, shared: bool, node: str | None = None) -> bool:
        # The lock of the data directory does it.
        return False

    def note_changed(self, log_ids: Sequence[str]) -> None:
        # No other process reads it.
        pass

    def notify(self) -> None:
        pass

    def try_lock(self, key: int) -> Callable[[], None] | None:
        return lambda: None

    def use_alone(self) -> None:
        # A second connection of this process would be locked out, too.
        self.single_connection = True
        self.engine = self._new_engine(self.engine.url)
        event.listen(self.engine, "connect", _lock_file)
        configure_sqlite(self.engine)

    def exclude(self) -> Exclusion | None:
        # A daemon with `store.url` has its lock in another folder.
        self.engine.dispose()
        file = database_file(self.engine)
        if self.single_connection or file is None or not file.exists():
            return _NOTHING_EXCLUDED
        try:
            # Succeeds only where no other connection is open, also one that writes nothing.
            with closing(_connection(file)) as connection:
                connection.execute("PRAGMA locking_mode=EXCLUSIVE").close()
                connection.execute("BEGIN IMMEDIATE").close()
                connection.execute("ROLLBACK").close()
            writing = _connection(file)
            writing.execute("BEGIN IMMEDIATE").close()
        except sqlite3.OperationalError as error:
            if is_locked(error):
                return None
            if _code(error) == sqlite3.SQLITE_READONLY:
                return _NOTHING_EXCLUDED
            raise
        return Exclusion(lambda: True, writing.close)

    def listen(self, notified: Callable[[Sequence[str] | None], None], stopped: threading.Event) -> None:
        # No other process writes it.
        pass

    def stop_listening(self) -> None:
        pass

    def begin_creation(self, connection: Connection) -> None:
        begin_immediately(connection)

    def checkpoint(self, connection: Connection) -> None:
        checkpoint(connection)

    def begin(self, connection: Connection) -> None:
        pass

    def is_reusable(self, connection: Connection) -> bool:
        return False

    def committed(self) -> None:
        pass

    def was_committed(self) -> bool:
        raise NotImplementedError("no connection of SQLite is lost")

    def has_free_space(self, connection: Connection) -> bool:
        return surplus_pages(connection) > 0

    def release_space(self, connection: Connection) -> bool:
        return release_pages(connection)

    def explain(self, error: BaseException | None) -> str | None:
        return explain_sqlite_error(error, self.name)

    def is_damage(self, error: BaseException | None) -> bool:
        return is_damage(error)

    def is_locked(self, error: BaseException | None) -> bool:
        return is_locked(error)

    def is_conflict(self, error: BaseException | None) -> bool:
        # There is one writer at a time, for which the others wait.
        return False

    def is_full(self, error: BaseException | None) -> bool:
        return is_full(error)

    def is_rolled_back(self, error: BaseException | None) -> bool:
        # The frame of the write-ahead log that makes it a commit is written last.
        return is_full(error)

    def is_lost(self, error: BaseException) -> bool:
        return False

    def close(self) -> None:
        pass


def _connection(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=0.0, isolation_level=None, check_same_thread=False)


def _read_only_connection(file: Path) -> sqlite3.Connection:
    """Opens a database file without changing it or the files beside it.

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


def database_file(engine: Engine) -> Path | None:
    """Returns the file of an SQLite database; None if the database is not a file."""
    file = engine.url.database
    if file in (None, "", ":memory:") or file.startswith("file:"):
        return None
    return Path(file)
