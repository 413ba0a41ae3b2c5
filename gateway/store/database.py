"""The database over SQLAlchemy's async engine: opened at today's version, one writer at a time, writes that are finished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec, Self

from sqlalchemy import insert, select, update

from gateway.errors import ConfigError
from gateway.store import schema
from gateway.store.core_engine import AsyncConnection, AsyncEngine, create_async_engine
from gateway.store.migrations import migrate
from gateway.store.sqlite import set_up_sqlite

Arguments = ParamSpec("Arguments")


def whole(method: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, Coroutine[Any, Any, None]]:
    """A write that is finished also when whoever asked for it is cancelled.

    Measured with aiosqlite 0.22 and SQLAlchemy 2.1: a transaction that is cancelled between two statements keeps the lock.
    """

    @wraps(method)
    async def write(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        await asyncio.shield(asyncio.create_task(method(*args, **kwargs)))

    return write


class Database:
    """Open with `await open(url)`. A write is a block of `_write`; reads take connections of the engine's pool."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._writing = asyncio.Lock()
        self._writer: AsyncConnection | None = None

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect; make the tables, or bring older ones up to date. Raises ConfigError for a store of a newer version."""
        # Messages do not belong in a log, which is where a failing statement's values would end.
        engine = create_async_engine(url, hide_parameters=True)
        if engine.dialect.name == "sqlite":
            set_up_sqlite(engine)
        store = cls(engine)
        async with engine.begin() as connection:
            await connection.run_sync(schema.schema_version.create, checkfirst=True)
            found = (await connection.execute(select(schema.schema_version.c.version))).scalar()
            if found is None or found <= schema.VERSION:
                await connection.run_sync(schema.metadata.create_all)
            if found is None:
                await connection.execute(insert(schema.schema_version).values(version=schema.VERSION))
            elif found < schema.VERSION:
                await connection.run_sync(migrate, found)
        if found is not None and found > schema.VERSION:
            # Nothing of it was touched.
            await engine.dispose()
            raise ConfigError(
                f"the store is of version {found}, this portico reads {schema.VERSION}: install the portico that wrote it"
            )
        return store

    async def close(self) -> None:
        async with self._writing:
            if self._writer is not None:
                await self._writer.close()
        await self._engine.dispose()

    @whole
    async def touch(self) -> None:
        """Write something that changes nothing: raises what every other write would."""
        version = schema.schema_version
        async with self._write() as connection:
            await connection.execute(update(version).values(version=version.c.version))

    @asynccontextmanager
    async def _write(self) -> AsyncIterator[AsyncConnection]:
        # SQLite has one writer; waiting here is fair and costs nothing, waiting in its busy handler is neither.
        async with self._writing:
            if self._writer is None:
                # Kept: taking a connection from the pool and giving it back costs as much as a statement.
                self._writer = await self._engine.connect()
            async with self._writer.begin():
                yield self._writer
