"""Copies a whole store to an empty database of any kind, in batches, and compares both at the end.

Rows are copied in the order of their primary keys, each batch in a transaction: the target always has the first rows of each
table, and a copy that was interrupted goes on behind them. Until the end the target has a version that no gateway opens.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, Table, func, insert, inspect, literal, select, text, tuple_, update
from sqlalchemy.exc import IntegrityError

from gateway.errors import ConfigError
from gateway.store import schema
from gateway.store.backend import backend_of
from gateway.store.database import Database

FIRST_ROWS, MOST_ROWS = 64, 2048
"""Rows of a batch: as many as have between SMALL_BATCH and LARGE_BATCH bytes, from what the batch before had."""
SMALL_BATCH, LARGE_BATCH = 256 * 1024, 8 * 1024 * 1024
TABLES: Sequence[Table] = tuple(
    # The daemon fills the index of the search anew, which is of another kind. The copy is of no cluster.
    table
    for table in schema.metadata.sorted_tables
    if table not in (schema.schema_version, schema.search_sessions, *schema.OF_RUNNING_NODES)
)
_STATE = "store_copy"
_CHANGED = "the source has changed since the copy began; copy it to an empty database"

_Key = tuple[Any, ...]
Progress = Callable[[str, int, int], None]
"""Called with the name of a table, how many of its rows are copied, and how many it has."""


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A table that both stores have, row for row. `digest` is that of all its values, in hexadecimal."""

    name: str
    rows: int
    digest: str


async def copy_store(source: str, target: str, progress: Progress = lambda name, rows, total: None) -> list[CopiedTable]:
    """Copies the store of one URL to the database of another, or goes on with such a copy. Returns the tables.

    Raises ConfigError if a daemon uses one of them, if one cannot be used, if the target has rows that are not of this copy, and
    if they differ at the end. No daemon can write to them meanwhile.
    """
    name = backend_of(source).name
    if name == backend_of(target).name:
        raise ConfigError(f"{name} is the source and the target: give the URL of an empty database as the target")
    original = await Database.open_unchanged(source, exactly=True)
    try:
        with original.explained_errors():
            async with original.without_daemons():
                copy = await Database.open_for_copy(target)
                try:
                    with copy.explained_errors():
                        found = await _copy(original, copy, name, progress)
                finally:
                    await copy.close()
    finally:
        await original.close()
    return found


async def _copy(source: Database, target: Database, name: str, progress: Progress) -> list[CopiedTable]:
    await target.write(lambda connection: _begin(connection, name))
    for table in TABLES:
        await _copy_table(source, target, table, progress)
    found = [await _compared(source, target, table) for table in TABLES]
    await target.write(_finish)
    return found


def _begin(connection: Connection, source: str) -> None:
    """Mark the target as one that is being copied to. Raises ConfigError if it is used by something else."""
    exists = inspect(connection).has_table(_STATE)
    before = connection.execute(text(f"SELECT source, version FROM {_STATE}")).first() if exists else None
    if before is not None:
        if before.source != source:
            raise ConfigError(f"a copy of {before.source} to this database is not finished: finish it, or use an empty database")
        if before.version != schema.VERSION:
            raise ConfigError(
                f"the copy was begun with a store of version {before.version}, the source is of version {schema.VERSION} now: "
                "copy it to an empty database"
            )
        return
    for table in TABLES:
        if connection.execute(select(literal(1)).select_from(table).limit(1)).first() is not None:
            raise ConfigError(f"the target is used: its table {table.name} has rows; use an empty database")
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS {_STATE} (source text NOT NULL, version integer NOT NULL)"))
    connection.execute(text(f"INSERT INTO {_STATE} VALUES (:source, :version)"), {"source": source, "version": schema.VERSION})
    connection.execute(update(schema.schema_version).values(version=schema.UNFINISHED_COPY))


def _finish(connection: Connection) -> None:
    # First: this begins a transaction of Python's sqlite3, where DROP TABLE would be one of its own.
    connection.execute(update(schema.schema_version).values(version=schema.VERSION))
    connection.execute(text(f"DROP TABLE {_STATE}"))
    if connection.dialect.name == "postgresql":
        last = f"SELECT max(id) FROM {schema.audit.name}"
        connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{schema.audit.name}', 'id'), ({last}))"))


async def _copy_table(source: Database, target: Database, table: Table, progress: Progress) -> None:
    count = select(func.count()).select_from(table)
    total = int(await source.read(lambda connection: connection.execute(count).scalar_one()))
    done = int(await target.read(lambda connection: connection.execute(count).scalar_one()))
    last = await target.read(lambda connection: _last_key(connection, table))
    progress(table.name, done, total)
    async for rows in _batches(source, table, last):
        await _insert(target, table, rows)
        done += len(rows)
        progress(table.name, done, total)


async def _batches(database: Database, table: Table, last: _Key | None = None) -> AsyncIterator[list[dict[str, Any]]]:
    """Yields the rows of a table in the order of their keys, those behind a key."""
    limit = FIRST_ROWS
    while rows := await database.read(partial(_rows_after, table=table, last=last, limit=limit)):
        yield rows
        last = tuple(rows[-1][column.name] for column in table.primary_key)
        limit = _next_limit(limit, sum(_size(row) for row in rows))


async def _insert(target: Database, table: Table, rows: list[dict[str, Any]]) -> None:
    try:
        await target.write(lambda connection: connection.execute(insert(table), rows).close())
    except IntegrityError:
        # A row refers to one that is behind those that were copied before.
        raise ConfigError(f"rows of the table {table.name} cannot be added to the copy: {_CHANGED}") from None


def _next_limit(limit: int, size: int) -> int:
    if size > LARGE_BATCH:
        return max(1, limit // 4)
    return min(MOST_ROWS, limit * 2) if size < SMALL_BATCH else limit


def _size(row: dict[str, Any]) -> int:
    return sum(len(value) for value in row.values() if isinstance(value, str | bytes))


def _last_key(connection: Connection, table: Table) -> _Key | None:
    key = list(table.primary_key)
    row = connection.execute(select(*key).order_by(*(column.desc() for column in key)).limit(1)).first()
    return tuple(row) if row is not None else None


def _rows_after(connection: Connection, table: Table, last: _Key | None, limit: int) -> list[dict[str, Any]]:
    key = list(table.primary_key)
    query = select(table).order_by(*key).limit(limit)
    if last is not None:
        query = query.where(
            tuple_(*key) > tuple_(*(literal(value, column.type) for value, column in zip(last, key, strict=True)))
        )
    rows, size = list[dict[str, Any]](), 0
    with connection.execute(query) as found:
        for row in found.mappings():
            rows.append(dict(row))
            size += _size(rows[-1])
            # SQLite reads one row after the other: rows may be much larger than those before.
            if size > LARGE_BATCH:
                break
    return rows


async def _compared(source: Database, target: Database, table: Table) -> CopiedTable:
    found, copied = [await _digest(database, table) for database in (source, target)]
    if found != copied:
        raise ConfigError(
            f"the table {table.name} of the copy differs ({copied.rows} of {found.rows} rows, digests {copied.digest[:12]} and "
            f"{found.digest[:12]}): {_CHANGED}"
        )
    return found


async def _digest(database: Database, table: Table) -> CopiedTable:
    digest, count = hashlib.sha256(), 0
    async for rows in _batches(database, table):
        for row in rows:
            for value in row.values():
                for part in _encoded(value):
                    digest.update(part)
        count += len(rows)
    return CopiedTable(table.name, count, digest.hexdigest())


def _encoded(value: Any) -> Iterator[bytes]:
    """The kind of a value, its length, and its bytes: other values have others."""
    if value is None:
        yield b"n"
    elif isinstance(value, float):
        yield b"f" + struct.pack(">d", value)
    else:
        kind, data = (b"b", value) if isinstance(value, bytes) else (type(value).__name__.encode(), str(value).encode())
        yield kind + struct.pack(">q", len(data))
        yield data
