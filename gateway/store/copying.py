"""Copies a whole store to an empty database of any kind, in batches, and compares both at the end.

Rows are copied in the order of their primary keys, each batch in a transaction: the target always has the first rows of each
table, and a copy that was interrupted goes on behind them. Until the end the target has a version that no gateway opens.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    URL,
    Connection,
    LargeBinary,
    Select,
    String,
    Table,
    func,
    insert,
    inspect,
    literal,
    make_url,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from gateway.errors import ConfigError
from gateway.store import schema
from gateway.store.backend import Backend
from gateway.store.database import Database
from gateway.store.urls import backend_of

FIRST_ROWS, MOST_ROWS = 64, 2048
"""Rows of a batch: as many as have between SMALL_BATCH and LARGE_BATCH bytes, from what the batch before had."""
SMALL_BATCH, LARGE_BATCH = 256 * 1024, 8 * 1024 * 1024
TABLES: Sequence[Table] = tuple(
    # The daemon fills the index of the search anew, which is of another kind. The copy is of no cluster.
    table
    for table in schema.metadata.sorted_tables
    if table not in (schema.store_version, schema.search_sessions, *schema.OF_RUNNING_NODES)
)
_STATE = "store_copy"
_BEFORE = "bytes_before"
_CHANGED = "the source has changed since the copy began; copy it to an empty database"
_NOT_KEPT = (
    "the target does not return the values of the source, or another program has written to one of them: go on with the source, "
    "and end other programs that use the databases before the next copy, to an empty database"
)
_PLACE = ("host", "hostaddr", "port", "dbname", "service", "user")
"""Parameters in a URL that say which database it is. Others may have passwords."""

Result = TypeVar("Result")
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
    name = _check_different(backend_of(source), backend_of(target))
    original = await Database.open_unchanged(source)
    try:
        async with original.without_daemons() as check_unchanged:
            copy = await Database.open_for_copy(target)
            try:
                return await _copy(original, copy, name, progress, check_unchanged)
            finally:
                await copy.close()
    finally:
        await original.close()


def _check_different(source: Backend, target: Backend) -> str:
    """Returns the name of the source. Raises ConfigError if both are one database, or if one of them ends with this process."""
    for backend in (source, target):
        if backend.engine.dialect.name == "sqlite" and backend.folder is None:
            raise ConfigError(f"{backend.name} is no file: give the path of one, as in sqlite:////home/me/portico.db")
    if source.name == target.name or (source.folder and target.folder and _is_same_file(source.name, target.name)):
        raise ConfigError(f"{source.name} is the source and the target: give the URL of an empty database as the target")
    return source.name


def _is_same_file(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:
        return False


async def _copy(
    source: Database, target: Database, name: str, progress: Progress, check_unchanged: Callable[[], Awaitable[None]]
) -> list[CopiedTable]:
    resumed = await _write(target, lambda connection: _begin(connection, name))
    found = list[CopiedTable]()
    for table in TABLES:
        await _copy_table(source, target, table, progress, resumed=resumed)
        await check_unchanged()
    for table in TABLES:
        found.append(await _compared(source, target, table, resumed=resumed))
        await check_unchanged()
    await _write(target, _finish)
    return found


# Errors are explained for each access: those of the one database are not taken for those of the other.


async def _read(database: Database, query: Callable[[Connection], Result]) -> Result:
    with database.explained_errors():
        return await database.read(query)


async def _write(database: Database, transaction: Callable[[Connection], Result]) -> Result:
    with database.explained_errors():
        return await database.write(transaction)


def _begin(connection: Connection, source: str) -> bool:
    """Mark the target as one that is being copied to. Returns whether it was before.

    Raises ConfigError if it is used by something else.
    """
    source = _without_parameters(source)
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
        return True
    for table in TABLES:
        if connection.execute(select(literal(1)).select_from(table).limit(1)).first() is not None:
            raise ConfigError(f"the target is used: its table {table.name} has rows; use an empty database")
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS {_STATE} (source text NOT NULL, version integer NOT NULL)"))
    connection.execute(text(f"INSERT INTO {_STATE} VALUES (:source, :version)"), {"source": source, "version": schema.VERSION})
    connection.execute(update(schema.store_version).values(version=schema.UNFINISHED_COPY))
    return False


def _without_parameters(name: str) -> str:
    """Returns the name of a database as the target may store it: others read that, and parameters may have passwords."""
    if "://" not in name:
        # A file.
        return name
    url = make_url(name)
    place = {key: value for key, value in sorted(url.query.items()) if key in _PLACE}
    shown = URL.create(url.drivername, url.username, host=url.host, port=url.port, database=url.database, query=place)
    return shown.render_as_string()


def _finish(connection: Connection) -> None:
    # First: this begins a transaction of Python's sqlite3, where DROP TABLE would be one of its own.
    connection.execute(update(schema.store_version).values(version=schema.VERSION))
    connection.execute(text(f"DROP TABLE {_STATE}"))
    if connection.dialect.name == "postgresql":
        last = f"SELECT max(id) FROM {schema.audit.name}"
        connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{schema.audit.name}', 'id'), ({last}))"))


async def _copy_table(source: Database, target: Database, table: Table, progress: Progress, *, resumed: bool) -> None:
    count = select(func.count()).select_from(table)
    total = int(await _read(source, lambda connection: connection.execute(count).scalar_one()))
    done = int(await _read(target, lambda connection: connection.execute(count).scalar_one()))
    last = await _read(target, lambda connection: _last_key(connection, table))
    progress(table.name, done, total)
    async for rows in _batches(source, table, last):
        await _insert(target, table, rows, resumed=resumed)
        done += len(rows)
        progress(table.name, done, total)


async def _batches(database: Database, table: Table, last: _Key | None = None) -> AsyncIterator[list[dict[str, Any]]]:
    """Yields the rows of a table in the order of their keys, those behind a key."""
    limit = FIRST_ROWS
    while rows := await _read(database, partial(_rows_after, table=table, last=last, limit=limit)):
        yield rows
        last = tuple(rows[-1][column.name] for column in table.primary_key)
        limit = _next_limit(limit, sum(_size(row) for row in rows))


async def _insert(target: Database, table: Table, rows: list[dict[str, Any]], *, resumed: bool) -> None:
    with target.explained_errors():
        try:
            await target.write(lambda connection: connection.execute(insert(table), rows).close())
        except (IntegrityError, DataError) as error:
            # In a copy that goes on, a row may refer to one that is behind those that were copied before.
            advice = _CHANGED if resumed else "the target cannot store what they have; correct them in the source"
            raise ConfigError(f"rows of the table {table.name} cannot be added to the copy ({_cause(error)}): {advice}") from None


def _cause(error: DBAPIError) -> str:
    """Returns what a database reports about rows, without values of them."""
    cause: BaseException = error.orig or error
    # The first line names the constraint. That of other errors may have a value.
    return str(cause).strip().split("\n", 1)[0] if isinstance(error, IntegrityError) else type(cause).__name__


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
    if connection.dialect.name != "sqlite":
        query = _up_to_large_batch(query, table)
    rows, size = list[dict[str, Any]](), 0
    with connection.execute(query) as found:
        for row in found.mappings():
            rows.append(dict(row))
            size += _size(rows[-1])
            # Rows may be much larger than those before. SQLite reads one after the other.
            if size > LARGE_BATCH:
                break
    return rows


def _up_to_large_batch(query: Select[Any], table: Table) -> Select[Any]:
    """Returns a query for the first of its rows, until they have LARGE_BATCH bytes: a driver of a server reads all at once.

    The size of a value is known to the server without reading it.
    """
    of_row = sum(
        (
            func.coalesce(func.octet_length(column), 0)
            for column in table.columns
            if isinstance(column.type, String | LargeBinary)
        ),
        literal(0),
    )
    key = list(table.primary_key)
    found = query.add_columns((func.sum(of_row).over(order_by=key) - of_row).label(_BEFORE)).subquery()
    return (
        select(*(found.c[column.name] for column in table.columns))
        .where(found.c[_BEFORE] < LARGE_BATCH)
        .order_by(*(found.c[column.name] for column in key))
    )


async def _compared(source: Database, target: Database, table: Table, *, resumed: bool) -> CopiedTable:
    found, copied = [await _digest(database, table) for database in (source, target)]
    if found != copied:
        advice = _CHANGED if resumed else _NOT_KEPT
        raise ConfigError(
            f"the table {table.name} of the copy differs ({copied.rows} of {found.rows} rows, digests {copied.digest[:12]} and "
            f"{found.digest[:12]}): {advice}"
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
