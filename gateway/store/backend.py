"""What differs between kinds of databases: how one is opened, what its errors mean, and how a transaction begins and ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Protocol

from gateway.errors import StoreUnavailable
from gateway.store.sql import Connection, Dialect
from gateway.store.times import StoreTimes


class Failure(Enum):
    """What an error of the driver means."""

    LOST = auto()
    """The connection is lost, or the server cannot be reached."""
    LOCKED = auto()
    """Another process has a lock, for which this one has waited."""
    CONFLICT = auto()
    """The transaction was ended for the sake of others, so that it may be executed again."""
    FULL = auto()
    """The disk has no space for what is written."""
    DAMAGED = auto()
    """The data is damaged."""
    INTEGRITY = auto()
    """A row is there already, or refers to one that is not there."""
    UNAVAILABLE = auto()
    """The database cannot do it now, for another reason."""
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Exclusion:
    """What lets no daemon write a database, until `release` is called."""

    is_held: Callable[[], bool]
    """Returns whether that was so until now. It blocks."""
    release: Callable[[], None]


class NodeIdTaken(StoreUnavailable):
    """Another process has this node's id: its lock, or the row of its heartbeats. This program may write nothing."""

    def __init__(self, node: str, holder: int = 0, end_holder: Callable[[Connection], None] = lambda _: None) -> None:
        super().__init__(
            f"the store cannot be written: another daemon has the id of this node, {node}; each node needs a data directory of "
            "its own, with an instance-id of its own"
        )
        self.holder = holder
        """A number of the connection that has the lock, which no other one has at the same time."""
        self.end_holder = end_holder
        """Ends that connection, if it still has the lock. Raises StoreUnavailable if it may not."""


class Backend(Protocol):
    """One kind of database. Database calls these methods in its threads, each of which has one connection."""

    dialect: Dialect
    name: str
    """The database in messages for people, without a password."""
    url: str
    """Its URL without passwords."""
    folder: Path | None
    """The folder of the database file; None if the database is not a file."""
    single_connection: bool
    """Whether all reads and writes share one connection, and so one thread."""
    times: StoreTimes
    is_pooled: bool
    """Whether this process is a node and a pooler is between it and the server. It is known after the first connection."""

    def connect(self) -> Connection:
        """Returns a new connection, which the caller closes, in autocommit mode."""

    def reading(self) -> AbstractContextManager[Connection]:
        """Returns the connection of this thread, outside of a transaction."""

    def transaction(self) -> AbstractContextManager[Connection]:
        """Returns the connection of this thread in a transaction that writes. It is committed at the end of the context.

        It is rolled back if the context raises an error.
        """

    def creation(self) -> AbstractContextManager[Connection]:
        """Returns a connection as `transaction`, which waits for the creation of the tables by another process."""

    def read_only(self) -> AbstractContextManager[Connection]:
        """Returns a connection that reads one state of the database, and changes neither the database nor its files.

        A database file must exist.
        """

    def before_connecting(self) -> None:
        """Prepares what a first connection needs."""

    def claim(self, *, shared: bool, node: str | None = None) -> bool:
        """From now on, transactions that write fail as locked while another process has claimed the database.

        Those that have claimed it as `shared` do not exclude each other, unless they have the same `node`: transactions of the
        second one raise NodeIdTaken. Returns False if the database has no such lock.
        """

    def exclude(self) -> Exclusion | None:
        """Lets no daemon write the database until what is returned is released. Returns None if one uses it."""

    def use_alone(self) -> None:
        """Before the first connection: from that on until `close`, no other process can use an SQLite file.

        Connecting fails as locked while another one uses it. The claim of a database with a server does that.
        """

    def checkpoint(self, connection: Connection) -> None:
        """Moves what was committed to where it stays. Called outside of a transaction."""

    def committed(self) -> None:
        """Called after the commit of each transaction."""

    def was_committed(self) -> bool:
        """Whether the last transaction, whose commit got no answer, is stored. Raises the driver's error if that is unknown."""

    def release_space(self, connection: Connection) -> bool:
        """Returns a part of the free space to the file system, in a transaction. Returns whether there may be more."""

    def has_free_space(self, connection: Connection) -> bool:
        """Whether `release_space` is worth a transaction."""

    def failure(self, error: BaseException | None) -> Failure | None:
        """Returns what an error of the driver means; None for any other error."""

    def explain(self, error: BaseException | None) -> str | None:
        """Returns what an error of the driver means and what to do, in one line; None for an error that has other causes."""

    def is_rolled_back(self, error: BaseException) -> bool:
        """Whether a commit that raised this error of the driver has stored nothing: not whether the connection was lost."""

    def close(self) -> None:
        """Closes all connections. Called after the last transaction."""


class ThreadConnections:
    """A connection for each thread that asks for one, until it is dropped or all are closed."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._of_thread = threading.local()
        self._open = list[Connection]()

    def get(self) -> Connection:
        """Returns the connection of this thread, a new one if it has none that is open."""
        found: Connection | None = getattr(self._of_thread, "connection", None)
        if found is None or found not in self._open:
            found = self._of_thread.connection = self._connect()
            self._open.append(found)
        return found

    def drop(self, connection: Connection) -> None:
        """Closes a connection, which may be lost."""
        with suppress(ValueError):
            self._open.remove(connection)
        with suppress(Exception):
            connection.close()

    def close(self) -> None:
        """Closes all connections, none of which may be in use."""
        for connection in list(self._open):
            self.drop(connection)
