"""Which database the stores of tests are in: SQLite files, or databases of a PostgreSQL server that this process starts.

PORTICO_TEST_STORE=postgresql, or PORTICO_TEST_CLUSTER, runs a test on PostgreSQL that does not choose. The fixture `store_kind`
chooses for a test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from gateway.store import schema
from gateway.store.backend import Backend
from gateway.store.postgresql import PostgresqlBackend
from gateway.store.sql import Connection
from gateway.store.sqlite import SqliteBackend, sqlite_url
from gateway.store.urls import backend_of
from tests.support import postgresql

Kind = Literal["sqlite", "postgresql"]
KINDS: tuple[Kind, ...] = ("sqlite", "postgresql")

_chosen = os.environ.get("PORTICO_TEST_STORE") == "postgresql" or "PORTICO_TEST_CLUSTER" in os.environ
_kind: Kind = "postgresql" if _chosen else "sqlite"
_databases: dict[Path, str] = {}


@contextmanager
def use(kind: Kind) -> Iterator[None]:
    """Use this kind of database inside."""
    global _kind
    before, _kind = _kind, kind
    try:
        yield
    finally:
        _kind = before


def kind() -> Kind:
    """Return the kind of database that is used now."""
    return _kind


def store_url(data_dir: Path, *, empty: bool = False) -> str:
    """Return the URL of the store of a data directory: always the same for a test, that of an SQLite file in the folder, or of a
    database with the tables of a store.

    With `empty` a database of PostgreSQL has no tables at first, as an SQLite file.
    """
    if _kind == "sqlite":
        return sqlite_url(data_dir)
    server = postgresql.server()
    if data_dir not in _databases:
        _databases[data_dir] = server.create_empty_database() if empty else server.create_database()
    return server.url(_databases[data_dir])


def configured_store(data_dir: Path) -> dict[str, str]:
    """Return the settings of [store] for a gateway: none for the default, an SQLite file in the data directory."""
    return {} if _kind == "sqlite" else {"url": store_url(data_dir)}


def database_name(data_dir: Path) -> str:
    """Return the name of the database of PostgreSQL that a data directory has."""
    return _databases[data_dir]


def clear() -> None:
    """Remove the databases of the test that has ended."""
    _databases.clear()
    postgresql.drop_databases()


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Connect to a database inside, in autocommit mode."""
    connection = backend_of(url).connect()
    with closing(connection.driver):
        yield connection


Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]]


def sql(data_dir: Path, statement: str, parameters: Parameters | None = None) -> list[tuple[Any, ...]]:
    """Execute a statement with named parameters in the store of a data directory, once for each mapping, and return its rows."""
    with connected(store_url(data_dir)) as connection:
        connection.execute("BEGIN")
        if isinstance(parameters, Sequence):
            connection.execute_many(statement, parameters)
            rows = list[tuple[Any, ...]]()
        else:
            cursor: Any = connection.execute(statement, parameters or {})
            rows = cursor.fetchall() if cursor.description else []
        connection.execute("COMMIT")
    return rows


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Let no other process write the version of the store of a data directory inside."""
    with connected(store_url(data_dir)) as connection:
        connection.execute("BEGIN IMMEDIATE" if _kind == "sqlite" else "BEGIN; LOCK TABLE store_version")
        yield


@contextmanager
def recorded_commits() -> Iterator[list[Backend]]:
    """Record the database of each transaction that a store of this process commits inside."""
    found = list[Backend]()
    with ExitStack() as stack:
        for kind in (SqliteBackend, PostgresqlBackend):
            real = kind.committed

            def committed(self: Any, real: Callable[[Any], None] = real) -> None:
                real(self)
                found.append(self)

            stack.enter_context(patch.object(kind, "committed", committed))
        yield found


@contextmanager
def before_commits(call: Callable[[Connection], None]) -> Iterator[None]:
    """Call a function before each commit of a store of this process inside. Its error is that of the commit."""
    with ExitStack() as stack:
        for kind in (SqliteBackend, PostgresqlBackend):
            real = kind.transaction

            @contextmanager
            def transaction(self: Any, real: Callable[[Any], Any] = real) -> Iterator[Connection]:
                with real(self) as connection:
                    yield connection
                    call(connection)

            stack.enter_context(patch.object(kind, "transaction", transaction))
        yield


def content(data_dir: Path) -> bytes:
    """Return everything that the store of a data directory has, as bytes: its files, or the values of all tables."""
    if _kind == "sqlite":
        return b"".join(file.read_bytes() for file in data_dir.glob("portico.db*"))
    found: list[bytes] = []
    for table in schema.tables():
        for row in sql(data_dir, f"SELECT * FROM {table}"):
            found += [value if isinstance(value, bytes) else str(value).encode() for value in row]
    return b"\n".join(found)
