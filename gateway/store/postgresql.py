"""What is specific to PostgreSQL: the settings of a connection, transactions in libpq's pipeline mode, the record of the last
commit, and what its errors mean.

This module is imported if the store is one of PostgreSQL: psycopg may not be installed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from uuid import uuid4

import psycopg

from gateway.errors import ConfigError, StoreUnavailable
from gateway.store.backend import Exclusion, Failure, NodeIdTaken, ThreadConnections
from gateway.store.postgresql_connection import AnsweredConnection
from gateway.store.postgresql_texts import TextDumper, TextLoader
from gateway.store.sql import Connection, Dialect
from gateway.store.times import STORE_TIMES, StoreTimes

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
    "SET idle_in_transaction_session_timeout = '60s'; SET extra_float_digits = 3; "
    "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; "
    "SELECT set_config(name, value, false) FROM (VALUES ('idle_session_timeout', '0'), ('tcp_user_timeout', '20s')) "
    "AS later (name, value) WHERE current_setting(name, true) IS NOT NULL"
)
"""Of each connection, besides `lock_timeout`. With the first, a daemon that is stopped in a transaction does not keep its locks:
the transaction is rolled back, and repeated when the daemon goes on. With the second, numbers are read as they are stored. With
those of TCP, the server notices after 20 to 25 seconds that the machine of a daemon is gone, and frees the daemon's lock. Not
each version of the server has the last two. `idle_session_timeout` would end connections that hold the lock of a daemon.
"""
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
    id text PRIMARY KEY, last_commit bigint NOT NULL, at timestamptz NOT NULL
) WITH (fillfactor = 10)
"""
_FORGET_WRITERS = "DELETE FROM store_writers WHERE at < now() - interval '30 days'"
_BEGIN = (
    "INSERT INTO store_writers AS w VALUES (:id, :number, now()) ON CONFLICT (id) DO UPDATE SET at = excluded.at, last_commit = "
    "CASE WHEN w.last_commit < excluded.last_commit THEN excluded.last_commit ELSE 1 / (w.last_commit - w.last_commit) END"
)
"""It fails in a transaction that `_RESOLVE` has not found: a server may read late what a lost connection has sent."""
_RESOLVE = (
    "INSERT INTO store_writers AS w VALUES (:id, :number, now()) ON CONFLICT (id) DO UPDATE SET at = excluded.at, last_commit = "
    "CASE WHEN w.last_commit = excluded.last_commit - 1 THEN w.last_commit ELSE excluded.last_commit END RETURNING last_commit"
)
"""Returns the number of a transaction if that was committed, else the number after it, which keeps it from being committed. It
waits for one that is at work.
"""


_BEGIN_IN_POOL = (
    "SELECT set_config('lock_timeout', :lock_timeout, true), set_config('idle_in_transaction_session_timeout', '8s', true), "
    f"pg_advisory_xact_lock_shared({_DAEMON_LOCK})"
)
"""Second statement of each transaction of a node that writes through a pooler: another program may get the connection to the
server, with the settings and locks of its session, for the next transaction.
"""


class PostgresqlBackend:
    """A database of a PostgreSQL server. Connections are in autocommit mode, so that a read is one round trip to the server.

    A transaction that writes is sent in pipeline mode: a round trip to a server on the same machine takes 0.1 ms, and several
    times as much where the processors are busy. It begins with the storing of its number in the row of this writer in
    `store_writers`: the row is what is known about a commit whose answer was lost. The numbers of transactions are even.
    """

    dialect: Dialect = "postgresql"
    folder: Path | None = None
    single_connection = False

    def __init__(self, url: str, shown: str, given: frozenset[str] = frozenset(), times: StoreTimes = STORE_TIMES) -> None:
        self.name = self.url = shown
        self.times, self._lock_timeout = times, f"{times.lock * 1000:.0f}ms"
        # Texts are sent in UTF-8 (postgresql_texts.py), whatever PGCLIENTENCODING or the URL says.
        parameters = {name: value for name, value in CONNECT_ARGUMENTS.items() if name not in given} | {"client_encoding": "utf8"}
        self._open = partial(AnsweredConnection.opened, times.answer, url, autocommit=True, **parameters)
        self._connections = ThreadConnections(self.connect)
        self._writer = uuid4().hex
        self._number = self._last_number = 0
        self._claim: str | None = None
        self._claimed: Connection | None = None
        self._node: str | None = None
        self.is_pooled = False
        self._locking: set[Connection] = set()

    def connect(self) -> Connection:
        driver = self._open()
        try:
            _configure(driver, self._lock_timeout)
            # A pooler gives clients numbers of its own, by which they cancel statements.
            self.is_pooled = self._node is not None and driver.server_process != driver.info.backend_pid
            if self.is_pooled:
                driver.prepare_threshold, driver.server_process = None, 0
        except BaseException:
            driver.close()
            raise
        return Connection(driver, "postgresql")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        connection = self._connections.get()
        try:
            yield connection
        except BaseException as error:
            if self.failure(error) is Failure.LOST:
                self._connections.drop(connection)
            raise

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        connection, failed = self._connections.get(), None
        try:
            if self._claim and connection is not self._claimed:
                self._take_claim(connection)
            self._number = self._last_number + 2
            with connection.driver.pipeline():
                try:
                    connection.driver.execute("BEGIN")
                    if self.is_pooled:
                        connection.execute(_BEGIN_IN_POOL, {"lock_timeout": self._lock_timeout})
                    connection.execute(_BEGIN, {"id": self._writer, "number": self._number})
                    yield connection
                    # Not prepared on the server, after which a message only names it: who looks at messages finds the commits.
                    connection.driver.execute("COMMIT", prepare=False)
                except BaseException as error:
                    # Raised behind the pipeline: psycopg logs what it finds at the end of one that an error passes.
                    failed = error
        except BaseException as error:
            failed = failed or error
        if failed is not None:
            self._roll_back(connection, failed)
            raise failed
        self.committed()

    @contextmanager
    def creation(self) -> Iterator[Connection]:
        connection = self._connections.get()
        with connection.driver.transaction():
            connection.driver.execute(f"{CREATION_WAIT}; SELECT pg_advisory_xact_lock({_CREATION_LOCK})")
            connection.execute(_CREATE_WRITERS)
            yield connection

    def _roll_back(self, connection: Connection, error: BaseException) -> None:
        # The lock of the daemon is that of this connection: with another one, the daemon would wait for itself.
        if self.failure(error) is not Failure.LOST:
            with suppress(psycopg.Error):
                connection.driver.rollback()
                if connection.driver.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                    return
        self._connections.drop(connection)

    @contextmanager
    def read_only(self) -> Iterator[Connection]:
        connection = self.connect()
        with closing(connection):
            connection.driver.execute(READ_ONLY)
            yield connection

    def before_connecting(self) -> None:
        pass

    def claim(self, *, shared: bool, node: str | None = None) -> bool:
        self._claim = _SHARED if shared else "pg_advisory_lock"
        self._node = node
        return True

    def exclude(self) -> Exclusion | None:
        connection = self.connect()
        try:
            if connection.value(f"SELECT pg_try_advisory_lock({_DAEMON_LOCK})"):
                self._locking.add(connection)
                return Exclusion(partial(self._holds, connection), partial(self._unlock, connection))
        except BaseException:
            connection.close()
            raise
        connection.close()
        return None

    def use_alone(self) -> None:
        pass

    def _unlock(self, connection: Connection) -> None:
        # The lock ends with the connection.
        self._locking.discard(connection)
        connection.close()

    def _holds(self, connection: Connection) -> bool:
        """Whether a connection still has the lock of the daemon. A lock that is lost cannot be had again by the same one."""
        try:
            return bool(connection.value(_HOLDS))
        except psycopg.Error as error:
            if self.failure(error) is Failure.LOST:
                return False
            raise

    def checkpoint(self, connection: Connection) -> None:
        pass

    def _take_claim(self, connection: Connection) -> None:
        connection.execute(_FORGET_WRITERS)
        if self.is_pooled:
            # Each transaction takes the lock, and the heartbeats find out whether another process has the id.
            self._claimed = connection
            return
        # The lock ends with the connection. That of a lost one may be held until the server notices the loss.
        connection.execute(f"SELECT {self._claim}({_DAEMON_LOCK})")
        if self._claim == _SHARED:
            connection.execute(NODE_SETTINGS)
        if self._node is not None:
            self._take_id(connection, self._node)
        self._claimed = connection

    def _take_id(self, connection: Connection, node: str) -> None:
        """Take the lock of a node's id. Raises NodeIdTaken if another process has it."""
        key, own = _key_of(f"node {node}"), _key_of(f"writer {self._writer}")
        # By this lock, later connections recognize this one as one of the same process.
        connection.execute(f"SELECT {_SHARED}({own})")
        is_own = f"EXISTS (SELECT FROM pg_locks AS own WHERE own.pid = held.pid AND {_is_lock('own', own)})"
        query = f"SELECT held.pid, {is_own} FROM pg_locks AS held WHERE {_is_lock('held', key)}"
        while not connection.value(f"SELECT pg_try_advisory_lock({key})"):
            holder = connection.first(query)
            if holder is None:
                # It was released just now.
                continue
            pid, is_of_this_process = holder
            end_holder = partial(_end_holder, key, pid)
            if not is_of_this_process:
                raise NodeIdTaken(node, pid, end_holder)
            # The server has not noticed yet that this process has lost that connection. Who waits gets the lock before those
            # who only try.
            end_holder(connection)
            connection.execute(f"SELECT pg_advisory_lock({key})")
            return

    def committed(self) -> None:
        self._last_number = self._number

    def was_committed(self) -> bool:
        deadline = time.monotonic() + self.times.resolve
        number, self._last_number = self._number, self._number
        while True:
            try:
                with self.reading() as connection:
                    return bool(connection.value(_RESOLVE, {"id": self._writer, "number": number + 1}) == number)
            except psycopg.Error:
                if time.monotonic() > deadline:
                    raise
                time.sleep(self.times.resolve_pause)

    def release_space(self, connection: Connection) -> bool:
        return False

    def has_free_space(self, connection: Connection) -> bool:
        # Autovacuum makes it free for later rows.
        return False

    def failure(self, error: BaseException | None) -> Failure | None:
        if not isinstance(error, psycopg.Error):
            return None
        state = error.sqlstate or ""
        unavailable = isinstance(error, psycopg.OperationalError)
        if error.diag.severity_nonlocalized in ("FATAL", "PANIC"):
            return Failure.LOST
        if state.startswith(_LOST) or (not state and (unavailable or isinstance(error, psycopg.InterfaceError))):
            return Failure.LOST
        if (found := _FAILURES.get(state)) is not None:
            return found
        if isinstance(error, psycopg.IntegrityError):
            return Failure.INTEGRITY
        return Failure.UNAVAILABLE if unavailable else Failure.OTHER

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

    def is_rolled_back(self, error: BaseException) -> bool:
        # The server has answered, to the commit or to a statement before it that was not waited for.
        return isinstance(error, psycopg.Error) and bool(error.sqlstate)

    def close(self) -> None:
        # Of callers that were cancelled while they got a lock.
        for locking in self._locking:
            locking.close()
        # Nobody asks for its commits any more. If the server cannot be reached, a later start deletes the row.
        with suppress(psycopg.Error), self.reading() as connection:
            connection.execute("DELETE FROM store_writers WHERE id = :id", {"id": self._writer})
        self._connections.close()


_LOST = ("08", "57P01", "57P02", "57P03", "57P05", "25006", "25P03", "53300")
"""SQLSTATEs of lost connections, and of a server that accepts none at the moment or is read-only."""
_FAILURES = {
    "55P03": Failure.LOCKED,
    "40P01": Failure.CONFLICT,
    "40001": Failure.CONFLICT,
    "53100": Failure.FULL,
    "XX001": Failure.DAMAGED,
    "XX002": Failure.DAMAGED,
}
"""By an SQLSTATE."""
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
    try:
        connection.execute(query)
    except psycopg.Error as error:
        if error.sqlstate is None:
            # The connection is lost.
            raise
        raise StoreUnavailable(first_line(error)) from error


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text."""
    return str(error).strip().split("\n", 1)[0]


def _configure(connection: AnsweredConnection, lock_timeout: str) -> None:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise ConfigError(
            f"the database {connection.info.dbname} has the encoding {encoding}: create one with the encoding UTF8 "
            "(createdb --encoding=UTF8 --template=template0 NAME)"
        )
    connection.execute(f"SET lock_timeout = '{lock_timeout}'; {SETTINGS}")
    (connection.server_process,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (0,)
    # Texts with NUL characters, which PostgreSQL refuses.
    connection.adapters.register_dumper(str, TextDumper)
    connection.adapters.register_loader("text", TextLoader)
