"""Copies a whole store to an empty database of any kind, in batches, and compares the numbers of rows at the end.

Until the end the target has a version that no gateway opens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    LargeBinary,
    Select,
    String,
    Table,
    func,
    insert,
    literal,
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
_BEFORE = "bytes_before"
Result = TypeVar("Result")
_Key = tuple[Any, ...]
Progress = Callable[[str, int, int], None]
"""Called with the name of a table, how many of its rows are copied, and how many it has."""


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A table, and how many rows of it both stores have."""

    name: str
    rows: int


async def copy_store(source: str, target: str, progress: Progress = lambda name, rows, total: None) -> list[CopiedTable]:
    """Copies the store of one URL to the database of another. Returns the tables.

    Raises ConfigError if a daemon uses one of them, if one cannot be used, if the target has rows, and if one has more rows than
    the other at the end. No daemon can write to them meanwhile.
    """
    _check_different(backend_of(source), backend_of(target))
    original = await Database.open_unchanged(source)
    try:
        async with original.without_daemons() as check_unchanged:
            copy = await Database.open_for_copy(target)
            try:
                return await _copy(original, copy, progress, check_unchanged)
            finally:
                await copy.close()
    finally:
        await original.close()


def _check_different(source: Backend, target: Backend) -> None:
    """Raises ConfigError if both are one database, or if one of them ends with this process."""
    for backend in (source, target):
        if backend.engine.dialect.name == "sqlite" and backend.folder is None:
            raise ConfigError(f"{backend.name} is no file: give the path of one, as in sqlite:////home/me/portico.db")
    if source.name == target.name or (source.folder and target.folder and _is_same_file(source.name, target.name)):
        raise ConfigError(f"{source.name} is the source and the target: give the URL of an empty database as the target")


def _is_same_file(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:
        return False


async def _copy(
    source: Database, target: Database, progress: Progress, check_unchanged: Callable[[], Awaitable[None]]
) -> list[CopiedTable]:
    await _write(target, _begin)
    for table in TABLES:
        await _copy_table(source, target, table, progress)
        await check_unchanged()
    found = [await _compared(source, target, table) for table in TABLES]
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


def _begin(connection: Connection) -> None:
    """Mark the target as one that is being copied to. Raises ConfigError if it has rows."""
    for table in TABLES:
        if connection.execute(select(literal(1)).select_from(table).limit(1)).first() is not None:
            raise ConfigError(f"the target is used: its table {table.name} has rows; use an empty database")
    connection.execute(update(schema.store_version).values(version=schema.UNFINISHED_COPY))


def _finish(connection: Connection) -> None:
    connection.execute(update(schema.store_version).values(version=schema.VERSION))
    if connection.dialect.name == "postgresql":
        last = f"SELECT max(id) FROM {schema.audit.name}"
        connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{schema.audit.name}', 'id'), ({last}))"))


async def _copy_table(source: Database, target: Database, table: Table, progress: Progress) -> None:
    total, done = await _count(source, table), 0
    progress(table.name, done, total)
    async for rows in _batches(source, table):
        await _insert(target, table, rows)
        done += len(rows)
        progress(table.name, done, total)


async def _count(database: Database, table: Table) -> int:
    return int(await _read(database, lambda connection: connection.execute(select(func.count()).select_from(table)).scalar_one()))


async def _batches(database: Database, table: Table) -> AsyncIterator[list[dict[str, Any]]]:
    """Yields the rows of a table in the order of their keys."""
    last: _Key | None = None
    limit = FIRST_ROWS
    while rows := await _read(database, partial(_rows_after, table=table, last=last, limit=limit)):
        yield rows
        last = tuple(rows[-1][column.name] for column in table.primary_key)
        limit = _next_limit(limit, sum(_size(row) for row in rows))


async def _insert(target: Database, table: Table, rows: list[dict[str, Any]]) -> None:
    with target.explained_errors():
        try:
            await target.write(lambda connection: connection.execute(insert(table), rows).close())
        except (IntegrityError, DataError) as error:
            raise ConfigError(
                f"rows of the table {table.name} cannot be added to the copy ({_cause(error)}): the target cannot store what they"
                " have; correct them in the source"
            ) from None


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


async def _compared(source: Database, target: Database, table: Table) -> CopiedTable:
    found, copied = [await _count(database, table) for database in (source, target)]
    if found != copied:
        raise ConfigError(
            f"the table {table.name} of the copy has {copied} rows, that of the source {found}: another program has written to"
            " one of them. End it, and copy to an empty database"
        )
    return CopiedTable(table.name, found)
