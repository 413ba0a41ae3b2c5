"""Database: threads, transactions, URLs and imports."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, insert, select, text

from gateway.store import MessageRow, SessionRecord, Store, schema
from gateway.store.database import READERS, Database
from gateway.store.sqlite import sqlite_url
from tests.gateway.stored_messages import message_bodies

IMPORTED = """
import sys
import gateway.server.daemon
unused = ("sqlalchemy.orm", "sqlalchemy.ext", "aiosqlite", "greenlet", "alembic")
print(*(name for name in sys.modules if name.startswith(unused)))
"""


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    found = await Database.open(sqlite_url(tmp_path))
    yield found
    await found.close()


def insert_process(connection: Connection, marker: str) -> None:
    connection.execute(insert(schema.processes).values(marker=marker, pid=1, started_at=0.0))


def markers(connection: Connection) -> list[str]:
    return list(connection.execute(select(schema.processes.c.marker).order_by(schema.processes.c.marker)).scalars())


def test_daemon_imports_neither_the_orm_nor_asyncio_drivers() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


async def test_connections_have_the_sqlite_settings(database: Database) -> None:
    def settings(connection: Connection) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        return [connection.execute(text(f"PRAGMA {name}")).scalar() for name in names]

    assert await database.read(settings) == await database.write(settings) == ["wal", 1, 1, 10000]


async def test_failed_transaction_is_rolled_back(database: Database) -> None:
    def failing(connection: Connection) -> None:
        insert_process(connection, "one")
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await database.write(failing)
    assert await database.read(markers) == []


async def test_writes_are_executed_in_call_order(database: Database) -> None:
    order: list[int] = []

    async def write(number: int) -> None:
        await database.write(lambda connection: order.append(number))

    await asyncio.gather(*(write(number) for number in range(50)))
    assert order == list(range(50))


async def test_write_is_completed_when_its_caller_is_cancelled(database: Database) -> None:
    """The same holds for a queued write."""
    begun, go = threading.Event(), threading.Event()

    def slow(connection: Connection) -> None:
        begun.set()
        go.wait(10)
        insert_process(connection, "running")

    running = asyncio.create_task(database.write(slow))
    await asyncio.to_thread(begun.wait, 10)
    queued = asyncio.create_task(database.write(lambda connection: insert_process(connection, "queued")))
    await asyncio.sleep(0)
    for writing in (running, queued):
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
    go.set()
    await database.write(lambda connection: None)
    assert await database.read(markers) == ["queued", "running"]


async def test_closing_waits_for_the_queued_writes(tmp_path: Path) -> None:
    database = await Database.open(sqlite_url(tmp_path))
    go = threading.Event()

    def write(number: int) -> Coroutine[Any, Any, None]:
        def transaction(connection: Connection) -> None:
            go.wait(10)
            insert_process(connection, str(number))

        return database.write(transaction)

    writing = [asyncio.create_task(write(number)) for number in range(5)]
    await asyncio.sleep(0)
    closing_it = asyncio.create_task(database.close())
    await asyncio.sleep(0.05)
    assert not closing_it.done()
    go.set()
    await closing_it
    await asyncio.gather(*writing)
    assert sorted(os.listdir(tmp_path)) == ["portico.db", "portico.db-commits"], "the last connection removes the write-ahead log"
    with closing(sqlite3.connect(tmp_path / "portico.db")) as connection:
        assert connection.execute("SELECT count(*) FROM processes").fetchone() == (5,)


async def test_reads_run_during_a_write_and_see_committed_data(database: Database) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(connection: Connection) -> None:
        insert_process(connection, "late")
        begun.set()
        go.wait(10)

    writing = asyncio.create_task(database.write(slow))
    await asyncio.to_thread(begun.wait, 10)
    assert await asyncio.gather(*(database.read(markers) for _ in range(20))) == [[]] * 20
    go.set()
    await writing
    assert await database.read(markers) == ["late"]
    names = {thread.name for thread in threading.enumerate() if thread.name.startswith("store-")}
    assert len(names) <= READERS + 1


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+pysqlite", "sqlite+aiosqlite"])
async def test_url_with_an_asyncio_driver_is_accepted(tmp_path: Path, driver: str) -> None:
    store = await Store.open(f"{driver}:///{tmp_path / 'other.db'}")
    await store.sessions.create(SessionRecord("s", "echo"), ["1"])
    await store.close()
    store = await Store.open(f"sqlite:///{tmp_path / 'other.db'}")
    assert await message_bodies(store, "s") == ["1"]
    await store.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite+aiosqlite:///:memory:"])
async def test_database_in_memory(url: str) -> None:
    store = await Store.open(url)
    await store.sessions.create(SessionRecord("s", "echo"), [])
    await asyncio.gather(*(store.messages.append("s", [MessageRow(str(number))]) for number in range(20)))
    assert await asyncio.gather(*(message_bodies(store, "s") for _ in range(5))) == [[str(number) for number in range(20)]] * 5
    await store.close()


async def test_second_connection_reads_while_the_first_writes(tmp_path: Path) -> None:
    """As `portico audit` does while the daemon runs."""
    writer, reader = await Store.open(sqlite_url(tmp_path)), await Store.open(sqlite_url(tmp_path))
    await writer.sessions.create(SessionRecord("s", "echo"), [])
    for number in range(20):
        await writer.messages.append("s", [MessageRow(str(number))])
        assert len(await message_bodies(reader, "s")) == number + 1
    await reader.close()
    await writer.messages.append("s", [MessageRow("last")])
    await writer.close()


async def test_what_a_failed_rollback_leaves_is_not_committed_by_the_next_write(database: Database) -> None:
    def fail(_: Connection) -> None:
        raise RuntimeError("the rollback fails")

    def transaction(connection: Connection) -> None:
        insert_process(connection, "rolled back")
        raise ValueError

    event.listen(Engine, "rollback", fail)
    try:
        with pytest.raises(RuntimeError, match="the rollback fails"):
            await database.write(transaction)
    finally:
        event.remove(Engine, "rollback", fail)
    await database.write(lambda connection: insert_process(connection, "after"))
    assert await database.read(markers) == ["after"]


async def test_the_next_write_works_after_a_connection_was_lost(database: Database) -> None:
    def lose(connection: Connection) -> None:
        insert_process(connection, "lost")
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.close()
        raise RuntimeError("lost")

    await database.write(lambda connection: insert_process(connection, "before"))
    with suppress(Exception):
        await database.write(lose)
    await database.write(lambda connection: insert_process(connection, "after"))
    assert await database.read(markers) == ["after", "before"]
