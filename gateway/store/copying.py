"""Copies a whole store to an empty database of any kind, in batches, and compares the numbers of rows at the end.

Until the end the target has a version that no gateway opens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gateway.errors import ConfigError
from gateway.store import schema
from gateway.store.backend import Backend
from gateway.store.database import Database
from gateway.store.partial_reads import rows_up_to
from gateway.store.sql import Connection, insert
from gateway.store.transactions import IntegrityError
from gateway.store.urls import backend_of

FIRST_ROWS, MOST_ROWS = 64, 2048
"""Rows of a batch: as many as have between SMALL_BATCH and LARGE_BATCH bytes, from what the batch before had."""
SMALL_BATCH, LARGE_BATCH = 256 * 1024, 8 * 1024 * 1024
TABLES: Sequence[str] = [
    # The copy is of no cluster.
    table
    for table in schema.tables()
    if table not in ("store_version", *schema.OF_RUNNING_NODES)
]
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
        if backend.dialect == "sqlite" and backend.folder is None:
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
        if connection.first(f"SELECT 1 FROM {table} LIMIT 1") is not None:
            raise ConfigError(f"the target is used: its table {table} has rows; use an empty database")
    _set_version(connection, schema.UNFINISHED_COPY)


def _finish(connection: Connection) -> None:
    _set_version(connection, schema.VERSION)
    if connection.dialect == "postgresql":
        for table, column in (("audit", "id"), ("histories", "number")):
            connection.execute(f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), max({column})) FROM {table}")
        # Without statistics, the search for a rare word reads all messages. The server makes them some time later.
        connection.execute("ANALYZE messages")


def _set_version(connection: Connection, version: int) -> None:
    connection.execute("UPDATE store_version SET version = :version", {"version": version})


async def _copy_table(source: Database, target: Database, table: str, progress: Progress) -> None:
    total, done = await _count(source, table), 0
    progress(table, done, total)
    async for rows in _batches(source, table):
        await _insert(target, table, rows)
        done += len(rows)
        progress(table, done, total)


async def _count(database: Database, table: str) -> int:
    return int(await _read(database, lambda connection: connection.value(f"SELECT count(*) FROM {table}")))


async def _batches(database: Database, table: str) -> AsyncIterator[list[dict[str, Any]]]:
    """Yields the rows of a table in the order of their keys."""
    last: _Key | None = None
    limit = FIRST_ROWS
    while rows := await _read(database, partial(_rows_after, table=table, last=last, limit=limit)):
        yield rows
        last = tuple(rows[-1][name] for name in _key_of(table))
        limit = _next_limit(limit, sum(_size(row) for row in rows))


def _key_of(table: str) -> list[str]:
    """Returns the columns of the primary key, in order."""
    return [column.name for column in sorted(schema.tables()[table], key=lambda column: column.key) if column.key]


async def _insert(target: Database, table: str, rows: list[dict[str, Any]]) -> None:
    def transaction(connection: Connection) -> None:
        # PostgreSQL takes the text of a number for any type: SQLite has the numbers 0 and 1 for truth.
        values = rows if connection.dialect == "sqlite" else map(_numbers_as_texts, rows)
        connection.execute_many(insert(table, rows[0]), values)

    with target.explained_errors():
        try:
            await target.write(transaction)
        except Exception as error:
            if (cause := _cause(error)) is None:
                raise
            raise ConfigError(
                f"rows of the table {table} cannot be added to the copy ({cause}): the target cannot store what they"
                " have; correct them in the source"
            ) from None


def _numbers_as_texts(row: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, int) else value for name, value in row.items()}


def _cause(error: Exception) -> str | None:
    """Returns what a database reports about rows that it refuses, without values of them; None for another error."""
    if isinstance(error, IntegrityError):
        # The first line names the constraint. That of other errors may have a value.
        return str(error).strip().split("\n", 1)[0]
    # Both drivers have a class of this name.
    return type(error).__name__ if "DataError" in (kind.__name__ for kind in type(error).__mro__) else None


def _next_limit(limit: int, size: int) -> int:
    if size > LARGE_BATCH:
        return max(1, limit // 4)
    return min(MOST_ROWS, limit * 2) if size < SMALL_BATCH else limit


def _size(row: dict[str, Any]) -> int:
    return sum(len(value) for value in row.values() if isinstance(value, str | bytes))


def _rows_after(connection: Connection, table: str, last: _Key | None, limit: int) -> list[dict[str, Any]]:
    columns, key = schema.tables()[table], _quoted(_key_of(table))
    query, values = f"SELECT {_quoted(column.name for column in columns)} FROM {table}", dict[str, Any]()
    if last is not None:
        values = {f"last_{n}": value for n, value in enumerate(last)}
        query += f" WHERE ({key}) > ({', '.join(f':{name}' for name in values)})"
    sized = " + ".join(f'coalesce({{size}}("{column.name}"), 0)' for column in columns if column.large)
    rows, size = list[dict[str, Any]](), 0
    for row in rows_up_to(connection, query, values, order=key, sized=f"({sized})", size=LARGE_BATCH, limit=limit):
        rows.append({column.name: value for column, value in zip(columns, row, strict=True)})
        size += _size(rows[-1])
        # Rows may be much larger than those before. SQLite reads one after the other.
        if size > LARGE_BATCH:
            break
    return rows


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


async def _compared(source: Database, target: Database, table: str) -> CopiedTable:
    found, copied = [await _count(database, table) for database in (source, target)]
    if found != copied:
        raise ConfigError(
            f"the table {table} of the copy has {copied} rows, that of the source {found}: another program has written to"
            " one of them. End it, and copy to an empty database"
        )
    return CopiedTable(table, found)
