"""What is specific to PostgreSQL: the settings of a connection, the record of the last commit, what its errors mean, and texts
with characters that it does not store.

This module is imported if the store is one of PostgreSQL: psycopg may not be installed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from gateway.errors import ConfigError
from gateway.store.backend import Exclusion, NodeIdTaken, shown_url
from gateway.store.postgresql_connection import AnsweredConnection
from gateway.store.postgresql_notifications import Notifications
from gateway.store.postgresql_pipeline import WritePipeline
from gateway.store.postgresql_texts import TextDumper, TextLoader
from gateway.store.prepared import DEFERRED

log = logging.getLogger(__name__)

CONNECT_ARGUMENTS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "application_name": "portico",
}
"""Parameters of libpq, which the URL may replace. A server that is gone without a word is noticed after 20 to 25 seconds."""
SETTINGS = (
    "SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '60s'; SET extra_float_digits = 3; "
    "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; "
    "SELECT set_config(name, value, false) FROM (VALUES ('idle_session_timeout', '0'), ('tcp_user_timeout', '20s')) "
    "AS later (name, value) WHERE current_setting(name, true) IS NOT NULL"
)
"""Of each connection. The first is what SQLite has as busy timeout. With the second, a daemon that is stopped in a transaction
does not keep its locks: the transaction is rolled back, and repeated when the daemon goes on. With the third, numbers are read as
they are stored. With those of TCP, the server notices after 20 to 25 seconds that the machine of a daemon is gone, and frees the
daemon's lock. Not each version of the server has the last two. `idle_session_timeout` would end connections that hold the lock of
a daemon.
"""
RESOLVE_TIMEOUT = 10.0
"""Seconds in which the outcome of a commit without an answer is asked for: as long as SQLite waits for a lock."""
RESOLVE_PAUSE = 0.1
_CREATION_LOCK = 0x706F727469636F
"""The key of the advisory lock that the creation of the tables takes: `portico` in ASCII."""
CREATION_WAIT = "SET LOCAL lock_timeout = '60s'"
"""Of the creation of the tables: for another process that creates them."""
READ_ONLY = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL idle_in_transaction_session_timeout = 0"
"""Begins a transaction that reads one state of the database, and may wait for a slow reader of its rows."""
_SHARED = "pg_advisory_lock_shared"
NODE_SETTINGS = "SET idle_in_transaction_session_timeout = '8s'"
"""Of the connection by which a node of a cluster writes: another node can take over the leases that a stopped one has locked."""
_DAEMON_LOCK = 0x6461656D6F6E
"""The key of the advisory lock of the daemon that uses the database, which the nodes of a cluster share."""
_HOLDS = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid() AND objsubid = 1 "
    f"AND classid = {_DAEMON_LOCK >> 32} AND objid = {_DAEMON_LOCK & 0xFFFFFFFF}"
)
_CREATE_WRITERS = """
CREATE TABLE IF NOT EXISTS store_writers (
    id varchar(32) PRIMARY KEY, last_commit bigint NOT NULL, at timestamptz NOT NULL
) WITH (fillfactor = 10)
"""
_FORGET_WRITERS = "DELETE FROM store_writers WHERE at < now() - interval '30 days'"
_BEGIN = (
    "INSERT INTO store_writers AS w VALUES (%s, %s, now()) ON CONFLICT (id) DO UPDATE SET at = excluded.at, last_commit = CASE "
    "WHEN w.last_commit < excluded.last_commit THEN excluded.last_commit ELSE 1 / (w.last_commit - w.last_commit) END"
)
"""It fails in a transaction that `_RESOLVE` has not found: a server may read late what a lost connection has sent."""
_RESOLVE = (
    "INSERT INTO store_writers AS w VALUES (%s, %s, now()) ON CONFLICT (id) DO UPDATE SET at = excluded.at, last_commit = CASE "
    "WHEN w.last_commit = excluded.last_commit - 1 THEN w.last_commit ELSE excluded.last_commit END RETURNING last_commit"
)
"""Returns the number of a transaction if that was committed, else the number after it, which keeps it from being committed. It
waits for one that is at work.
"""


class PostgresqlBackend:
    """A database of a PostgreSQL server. Connections are in autocommit mode, so that a read is one round trip to the server.

    A transaction that writes begins by `begin`, which stores its number in the row of this writer in `store_writers`: the row is
    what is known about a commit whose answer was lost. The numbers of transactions are even.
    """

    folder: Path | None = None
    single_connection = False

    def __init__(self, url: URL) -> None:
        self.name = shown_url(url)
        given = {name: value for name, value in CONNECT_ARGUMENTS.items() if name not in url.query}
        # Messages do not belong in a log, which is where the values of a failing statement would be written.
        self.engine: Engine = create_engine(
            url,
            hide_parameters=True,
            isolation_level="AUTOCOMMIT",
            use_native_hstore=False,
            # Texts are sent in UTF-8 (postgresql_texts.py), whatever PGCLIENTENCODING or the URL says.
            connect_args=given | {"client_encoding": "utf8"},
        )
        event.listen(self.engine, "do_connect", lambda _, __, args, parameters: AnsweredConnection.opened(*args, **parameters))
        event.listen(self.engine, "connect", _on_connect)
        WritePipeline(_BEGIN).install(self.engine)
        self._writer = uuid4().hex
        self._number = self._last_number = 0
        self._claim: str | None = None
        self._claimed: object = None
        self._node: str | None = None
        self.notifications = Notifications(self.engine)
        self._locking: set[Connection] = set()

    @contextmanager
    def read_only(self) -> Iterator[Connection]:
        with self.engine.connect() as connection:
            connection.exec_driver_sql(READ_ONLY).close()
            try:
                yield connection
            finally:
                # The pool keeps the connection, and takes one in autocommit mode for one without a transaction.
                connection.invalidate()

    def before_connecting(self) -> None:
        pass

    def claim(self, *, shared: bool, node: str | None = None) -> bool:
        self._claim = _SHARED if shared else "pg_advisory_lock"
        self._node = node
        return True

    def try_lock(self, key: int) -> Callable[[], None] | None:
        connection = self._lock(key)
        return None if connection is None else partial(self._unlock, connection)

    def exclude(self) -> Exclusion | None:
        connection = self._lock(_DAEMON_LOCK)
        return None if connection is None else Exclusion(partial(self._holds, connection), partial(self._unlock, connection))

    def use_alone(self) -> None:
        pass

    def _lock(self, key: int) -> Connection | None:
        """Return a connection that has taken a lock; None if another one has it."""
        connection = self.engine.connect()
        try:
            locked = connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({key})").scalar()
        except BaseException:
            connection.close()
            raise
        if not locked:
            connection.close()
            return None
        self._locking.add(connection)
        return connection

    def _unlock(self, connection: Connection) -> None:
        # The lock ends with the connection, which the pool would keep.
        self._locking.discard(connection)
        connection.invalidate()
        connection.close()

    def _holds(self, connection: Connection) -> bool:
        """Whether a connection still has the lock of the daemon. A lock that is lost cannot be had again by the same one."""
        try:
            return bool(connection.exec_driver_sql(_HOLDS).scalar())
        except SQLAlchemyError as error:
            if self.is_lost(error):
                return False
            raise

    def begin_creation(self, connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN").close()
        connection.exec_driver_sql(f"{CREATION_WAIT}; SELECT pg_advisory_xact_lock({_CREATION_LOCK})").close()
        connection.exec_driver_sql(_CREATE_WRITERS).close()

    def checkpoint(self, connection: Connection) -> None:
        pass

    def begin(self, connection: Connection) -> None:
        connected = connection.connection.driver_connection
        if self._claim and connected is not self._claimed:
            # The lock ends with the connection. That of a lost one may be held until the server notices the loss.
            connection.exec_driver_sql(f"SELECT {self._claim}({_DAEMON_LOCK})").close()
            connection.exec_driver_sql(_FORGET_WRITERS).close()
            if self._claim == _SHARED:
                connection.exec_driver_sql(NODE_SETTINGS).close()
            if self._node is not None:
                self._take_id(connection, self._node)
            self._claimed = connected
        self._number = self._last_number + 2
        connection.exec_driver_sql(_BEGIN, (self._writer, self._number), DEFERRED).close()

    def _take_id(self, connection: Connection, node: str) -> None:
        """Take the lock of a node's id. Raises NodeIdTaken if another process has it."""
        key, own = _key_of(f"node {node}"), _key_of(f"writer {self._writer}")
        # By this lock, later connections recognize this one as one of the same process.
        connection.exec_driver_sql(f"SELECT {_SHARED}({own})").close()
        is_own = f"EXISTS (SELECT FROM pg_locks AS own WHERE own.pid = held.pid AND {_is_lock('own', own)})"
        query = f"SELECT held.pid, {is_own} FROM pg_locks AS held WHERE {_is_lock('held', key)}"
        while not connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({key})").scalar():
            holder = connection.exec_driver_sql(query).first()
            if holder is None:
                # It was released just now.
                continue
            end_holder = partial(_end_holder, key, holder.pid)
            if not holder[1]:
                raise NodeIdTaken(node, holder.pid, end_holder)
            # The server has not noticed yet that this process has lost that connection. Who waits gets the lock before those
            # who only try.
            end_holder(connection)
            connection.exec_driver_sql(f"SELECT pg_advisory_lock({key})").close()
            return

    def is_reusable(self, connection: Connection) -> bool:
        if connection.invalidated:
            return False
        connected: Any = connection.connection.driver_connection
        if connected.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            # The lock of the daemon is its own: with another connection of the pool, the daemon would wait for itself.
            return True
        connection.invalidate()
        return False

    def committed(self) -> None:
        self._last_number = self._number

    def was_committed(self) -> bool:
        deadline = time.monotonic() + RESOLVE_TIMEOUT
        number, self._last_number = self._number, self._number
        while True:
            try:
                with self.engine.connect() as connection:
                    return connection.exec_driver_sql(_RESOLVE, (self._writer, number + 1)).scalar() == number
            except SQLAlchemyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RESOLVE_PAUSE)

    def release_space(self, connection: Connection) -> bool:
        return False

    def has_free_space(self, connection: Connection) -> bool:
        # Autovacuum makes it free for later rows.
        return False

    def explain(self, error: BaseException | None) -> str | None:
        if not isinstance(error, psycopg.Error):
            return None
        cause = first_line(error)
        state = error.sqlstate
        if state is not None:
            advice = next((advice for kind, advice in _ADVICE.items() if state.startswith(kind)), None)
        else:
            advice = next((advice for part, advice in _ADVICE_AT_CONNECTING.items() if part in cause), None)
            if advice is None and isinstance(error, psycopg.OperationalError):
                advice = "check that the server runs, its address and its port"
        return advice and f"the database {self.name} cannot be used ({cause}): {advice}"

    def is_damage(self, error: BaseException | None) -> bool:
        return _sqlstate(error) in ("XX001", "XX002")

    def is_locked(self, error: BaseException | None) -> bool:
        return _sqlstate(error) == "55P03"

    def is_conflict(self, error: BaseException | None) -> bool:
        return _sqlstate(error) in ("40P01", "40001")

    def is_full(self, error: BaseException | None) -> bool:
        return _sqlstate(error) == "53100"

    def is_rolled_back(self, error: BaseException | None) -> bool:
        # The server has answered, to the commit or to a statement that was deferred until then.
        return _sqlstate(error) != ""

    def is_lost(self, error: BaseException) -> bool:
        if not isinstance(error, DBAPIError):
            return False
        state, kinds = _sqlstate(error.orig), (psycopg.OperationalError, psycopg.InterfaceError)
        # A server that becomes read-only has been replaced by another one.
        return error.connection_invalidated or (isinstance(error.orig, kinds) and state == "") or state.startswith(_LOST)

    def note_changed(self, log_ids: Sequence[str]) -> None:
        self.notifications.add(log_ids)

    def notify(self) -> None:
        self.notifications.send()

    def listen(self, notified: Callable[[Sequence[str] | None], None], stopped: threading.Event) -> None:
        self.notifications.listen(notified, stopped)

    def stop_listening(self) -> None:
        self.notifications.wake()

    def close(self) -> None:
        # Of callers that were cancelled while they got a lock.
        for locking in self._locking:
            locking.invalidate()
            locking.close()
        # Nobody asks for its commits any more. If the server cannot be reached, a later start deletes the row.
        try:
            with self.engine.connect() as connection:
                connection.exec_driver_sql(f"DELETE FROM store_writers WHERE id = '{self._writer}'").close()
        except SQLAlchemyError:
            pass


_LOST = ("08", "57P01", "57P02", "57P03", "57P05", "25006", "25P03", "53300")
"""SQLSTATEs of lost connections, and of a server that accepts none at the moment or is read-only."""
_CREDENTIALS = "in the URL, or by PGPASSWORD or a password file"
_CONNECTIONS = "raise max_connections of the server, or the limit of the database or the user, or end other programs that use it"
_ADVICE = {
    "28": f"check the user and the password: {_CREDENTIALS}, and the server's pg_hba.conf",
    "25006": "use a server that can be written to: this one is read-only, as a standby is",
    "3D000": "create the database: createdb NAME",
    "3F000": "create the schema public, or name another one: ?options=-csearch_path%3DNAME",
    "42501": "give the user the rights: GRANT CREATE ON SCHEMA public TO USER, and let it own the tables that are there",
    "53100": "free space on the server's disk",
    "53300": _CONNECTIONS,
    "57014": "raise statement_timeout of the user or the database: a search may take long",
    "57P03": "wait until the server has started",
    "55P03": "end the program that has locked its tables",
}
"""By the beginning of an SQLSTATE."""
_ADVICE_AT_CONNECTING = {
    "no password supplied": f"give a password: {_CREDENTIALS}",
    "password authentication failed": f"check the user and the password: {_CREDENTIALS}",
    "does not exist": "create it on the server, with createdb or createuser",
    "too many": _CONNECTIONS,
    "connection slots": _CONNECTIONS,
    "does not support SSL": "switch TLS on at the server, or leave out sslmode",
    "invalid": "check the parameters in the URL",
}
"""By a part of the text of libpq, whose errors at a connection have no SQLSTATE."""


def _key_of(name: str) -> int:
    """The key of the advisory lock of a name: 64 bits, so that two names have different ones."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), signed=True)


def _is_lock(alias: str, key: int) -> str:
    """The condition that a row of pg_locks is of an advisory lock in this database, which its process has."""
    return (
        f"{alias}.locktype = 'advisory' AND {alias}.granted AND {alias}.objsubid = 1 "
        f"AND {alias}.classid::bigint = {key >> 32 & 0xFFFFFFFF} AND {alias}.objid::bigint = {key & 0xFFFFFFFF} "
        f"AND {alias}.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )


def _end_holder(key: int, pid: int, connection: Connection) -> None:
    """End a process of the server, if it has this advisory lock."""
    query = f"SELECT pg_terminate_backend(held.pid) FROM pg_locks AS held WHERE held.pid = {pid} AND {_is_lock('held', key)}"
    connection.exec_driver_sql(query).close()


def _sqlstate(error: BaseException | None) -> str:
    return (getattr(error, "sqlstate", None) or "") if isinstance(error, psycopg.Error) else ""


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text."""
    return str(error).strip().split("\n", 1)[0]


def _on_connect(connection: AnsweredConnection, _: object) -> None:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise ConfigError(
            f"the database {connection.info.dbname} has the encoding {encoding}: create one with the encoding UTF8 "
            "(createdb --encoding=UTF8 --template=template0 NAME)"
        )
    connection.execute(SETTINGS)
    (connection.server_process,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (0,)
    _adapt_texts(connection)


def _adapt_texts(connection: psycopg.Connection[Any]) -> None:
    """Lets a connection store texts with NUL characters, which PostgreSQL refuses."""
    connection.adapters.register_dumper(str, TextDumper)
    for name in ("text", "varchar"):
        connection.adapters.register_loader(name, TextLoader)
