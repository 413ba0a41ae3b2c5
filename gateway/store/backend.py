"""What differs between kinds of databases: how one is opened, what its errors mean, and how a transaction begins and ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL

from gateway.errors import StoreUnavailable


@dataclass(frozen=True, slots=True)
class Exclusion:
    """What lets no daemon write a database, until `release` is called."""

    is_held: Callable[[], bool]
    """Returns whether that was so until now. It blocks."""
    release: Callable[[], None]


class NodeIdTaken(StoreUnavailable):
    """Another connection to the database has the lock of this node's id, so that this program may write nothing."""

    def __init__(self, node: str, holder: int, end_holder: Callable[[Connection], None]) -> None:
        super().__init__(
            f"the store cannot be written: another daemon has the id of this node, {node}; each node needs a data directory of "
            "its own, with an instance-id of its own"
        )
        self.holder = holder
        """A number of the connection, which no other one has at the same time."""
        self.end_holder = end_holder
        """Ends that connection, if it still has the lock."""


class Backend(Protocol):
    """One kind of database, behind the engine that it has made. Database calls these methods in its threads."""

    engine: Engine
    name: str
    """The database in messages for people, without a password."""
    folder: Path | None
    """The folder of the database file; None if the database is not a file."""
    single_connection: bool
    """Whether all reads and writes share one connection."""

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

    def try_lock(self, key: int) -> Callable[[], None] | None:
        """Takes a lock that no other process gets until what is returned is called. Returns None if another one has it."""

    def exclude(self) -> Exclusion | None:
        """Lets no daemon write the database until what is returned is released. Returns None if one uses it."""

    def use_alone(self) -> None:
        """Before the first connection: from that on until `close`, no other process can use an SQLite file.

        Connecting fails as locked while another one uses it. The claim of a database with a server does that.
        """

    def begin_creation(self, connection: Connection) -> None:
        """Makes the creation of all tables one transaction, which waits for the creation by another process."""

    def checkpoint(self, connection: Connection) -> None:
        """Moves what was committed to where it stays. Called outside of a transaction."""

    def begin(self, connection: Connection) -> None:
        """Called at the beginning of a transaction that writes."""

    def note_changed(self, log_ids: Sequence[str]) -> None:
        """Called after the commit of transactions that have changed these logs. A listener that stops notifies of them."""

    def notify(self) -> None:
        """Called after `note_changed`, and when those who wait for the commit were told: all nodes are notified soon.

        A notification may be lost, as when the process ends. It does not block.
        """

    def listen(self, notified: Callable[[Sequence[str] | None], None], stopped: threading.Event) -> None:
        """Calls `notified` with the ids of logs that were changed, until `stopped` is set; with None where some may be missed.

        One thread of a process listens, which sends the notifications of `notify`, too. It blocks, until `stop_listening` is
        called too.
        """

    def stop_listening(self) -> None:
        """Wakes the listener, so that it returns if it is stopped. It does not block."""

    def is_reusable(self, connection: Connection) -> bool:
        """Whether the connection of a transaction that failed is as it was before that. The pool resets one that is not."""

    def committed(self) -> None:
        """Called after the commit."""

    def was_committed(self) -> bool:
        """Whether the last transaction, whose commit got no answer, is stored. Raises the database's error if that is unknown."""

    def release_space(self, connection: Connection) -> bool:
        """Returns a part of the free space to the file system, in a transaction. Returns whether there may be more."""

    def has_free_space(self, connection: Connection) -> bool:
        """Whether `release_space` is worth a transaction."""

    def explain(self, error: BaseException | None) -> str | None:
        """Returns what an error of the driver means and what to do, in one line; None for an error that has other causes."""

    def is_damage(self, error: BaseException | None) -> bool:
        """Whether an error of the driver shows that the data is damaged."""

    def is_locked(self, error: BaseException | None) -> bool:
        """Whether an error of the driver is that of a lock of another process, for which it has waited."""

    def is_conflict(self, error: BaseException | None) -> bool:
        """Whether an error of the driver has ended a transaction for the sake of others, so that it may be executed again."""

    def is_full(self, error: BaseException | None) -> bool:
        """Whether an error of the driver is that of a disk without space for what is written."""

    def is_rolled_back(self, error: BaseException | None) -> bool:
        """Whether a commit that raised this error of the driver has stored nothing: not whether the connection was lost."""

    def is_lost(self, error: BaseException) -> bool:
        """Whether an error of SQLAlchemy is that of a lost connection, or of a server that cannot be reached."""

    def close(self) -> None:
        """Called after the last transaction."""


KEY_PASSWORD = "sslpassword"
"""The parameter of a URL with the password of the key of a TLS certificate."""


def shown_url(url: URL) -> str:
    """Returns a URL as errors and logs have it: without passwords, and with the name of the database instead of a driver's."""
    return url.set(drivername=url.get_backend_name()).difference_update_query([KEY_PASSWORD]).render_as_string(hide_password=True)
