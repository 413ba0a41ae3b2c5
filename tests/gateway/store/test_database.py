"""Database: threads, transactions and URLs."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gateway.errors import ConfigError, StoreAbandoned, StoreFull, StoreUnavailable
from gateway.store import EventRow, IntegrityError, MessageRow, SessionRecord, Store
from gateway.store.backend import Backend
from gateway.store.database import Database
from gateway.store.events import insert_events
from gateway.store.sql import Connection
from gateway.store.sqlite import RELEASED_PAGES, SqliteBackend, checkpoint, release_pages, surplus_pages
from gateway.store.transactions import READERS
from tests.support.stored_messages import message_bodies
from tests.support.stores import before_commits, kind, sql, store_url
from tests.support.waiting import wait_until


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    found = await Database.open(store_url(tmp_path))
    yield found
    await found.close()


def insert_process(connection: Connection, marker: str) -> None:
    connection.execute("INSERT INTO processes VALUES (:marker, 1, 0.0)", {"marker": marker})


def markers(connection: Connection) -> list[str]:
    return connection.values("SELECT marker FROM processes ORDER BY marker")


def insert_rows(connection: Connection, first: int, last: int) -> None:
    for number in range(first, last + 1):
        insert_events(connection, EventRow("log", number, number, bytes(3000)))


def delete_rows(connection: Connection, behind: int) -> None:
    connection.execute("DELETE FROM events WHERE first > :behind", {"behind": behind})


@pytest.mark.sqlite_only
async def test_connections_have_the_sqlite_settings(database: Database) -> None:
    def settings(connection: Connection) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        return [connection.value(f"PRAGMA {name}") for name in names]

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
    database = await Database.open(store_url(tmp_path))
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
    if kind() == "sqlite":
        assert sorted(os.listdir(tmp_path)) == ["portico.db"], "the last connection removes the log"
    assert sql(tmp_path, "SELECT count(*) FROM processes") == [(5,)]


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


@pytest.mark.parametrize(
    "url",
    [
        "sqlite+aiosqlite:///{}",
        "sqlite+pysqlite:///{}",
        "postgresql+asyncpg://me@db/x",
        "postgresql+psycopg://me@db/x",
        "mysql://db/x",
    ],
)
async def test_url_with_a_driver_or_of_another_database_is_refused(tmp_path: Path, url: str) -> None:
    file = tmp_path / "other.db"
    with pytest.raises(
        ConfigError, match=rf"store.url: there is no store for {re.escape(url.partition(':')[0])}: use sqlite:///FILE or "
    ):
        await Store.open(url.format(file))
    assert not file.exists()


@pytest.mark.sqlite_only
async def test_database_in_memory() -> None:
    store = await Store.open("sqlite://")
    await store.sessions.create(SessionRecord("s", "echo"), [])
    await asyncio.gather(*(store.messages.append("s", [MessageRow(str(number))]) for number in range(20)))
    assert await asyncio.gather(*(message_bodies(store, "s") for _ in range(5))) == [[str(number) for number in range(20)]] * 5
    await store.close()


@pytest.mark.sqlite_only
async def test_second_connection_reads_while_the_first_writes(tmp_path: Path) -> None:
    """As `portico audit` does while the daemon runs."""
    writer, reader = await Store.open(store_url(tmp_path)), await Store.open(store_url(tmp_path))
    await writer.sessions.create(SessionRecord("s", "echo"), [])
    for number in range(20):
        await writer.messages.append("s", [MessageRow(str(number))])
        assert len(await message_bodies(reader, "s")) == number + 1
    await reader.close()
    await writer.messages.append("s", [MessageRow("last")])
    await writer.close()


async def test_what_a_failed_rollback_leaves_is_not_committed_by_the_next_write(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = list[str]()

    def authorize(action: int, name: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_TRANSACTION and name == "ROLLBACK":
            failed.append(name)
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def roll_back(_: psycopg.Connection[Any]) -> None:
        failed.append("rollback")
        raise psycopg.OperationalError("the rollback fails")

    def transaction(connection: Connection) -> None:
        insert_process(connection, "rolled back")
        if connection.dialect == "sqlite":
            connection.driver.set_authorizer(authorize)
        else:
            monkeypatch.setattr(psycopg.Connection, "rollback", roll_back)
        raise ValueError

    with pytest.raises(ValueError):
        await database.write(transaction)
    assert failed
    await database.write(lambda connection: insert_process(connection, "after"))
    assert await database.read(markers) == ["after"]


async def test_the_next_write_works_after_a_connection_was_lost(database: Database) -> None:
    def lose(connection: Connection) -> None:
        insert_process(connection, "lost")
        connection.driver.close()
        raise RuntimeError("lost")

    await database.write(lambda connection: insert_process(connection, "before"))
    with suppress(Exception):
        await database.write(lose)
    await database.write(lambda connection: insert_process(connection, "after"))
    assert await database.read(markers) == ["after", "before"]


BLOCKER = 1
"""The commit of `block_writer`."""


@pytest.fixture
async def block_writer(database: Database) -> AsyncIterator[threading.Event]:
    """Block the writer thread by a transaction until the event is set."""
    began, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block(connection: Connection) -> None:
        loop.call_soon_threadsafe(began.set)
        release.wait(60)

    blocked = asyncio.create_task(database.write(block))
    await began.wait()
    yield release
    release.set()
    await blocked


async def test_queued_writes_are_committed_together(
    database: Database, commits: list[Backend], block_writer: threading.Event
) -> None:
    names = [f"m{n}" for n in range(5)]
    writes = [asyncio.create_task(database.write(partial(insert_process, marker=name))) for name in names]
    await asyncio.sleep(0)
    block_writer.set()
    await asyncio.gather(*writes)
    assert await database.read(markers) == names
    assert len(commits) == BLOCKER + 1


async def test_failed_write_does_not_affect_those_that_are_queued_with_it(
    database: Database, commits: list[Backend], block_writer: threading.Event
) -> None:
    names = ["m1", "m2", "m1", "m3"]
    writes = [asyncio.create_task(database.write(partial(insert_process, marker=name))) for name in names]
    await asyncio.sleep(0)
    writes[1].cancel()
    block_writer.set()
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), asyncio.CancelledError, IntegrityError, type(None)]
    # Cancelling a caller does not cancel its write.
    assert await database.read(markers) == ["m1", "m2", "m3"]
    assert len(commits) == BLOCKER + 3


@pytest.mark.sqlite_only
async def test_an_empty_database_that_another_program_creates_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "portico.db"
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        # Not in WAL mode yet.
        other.execute("CREATE TABLE created (id)")
        other.execute("BEGIN IMMEDIATE")
        released = threading.Timer(0.3, other.rollback)
        released.start()
        try:
            with closing(SqliteBackend(str(file)).connect().driver) as connection:
                assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        finally:
            released.join()


@pytest.mark.sqlite_only
async def test_queued_writes_wait_once_for_a_locked_database(database: Database, tmp_path: Path) -> None:
    begun = list[str]()

    def wait_shortly(connection: Connection) -> None:
        connection.execute("PRAGMA busy_timeout=50")
        connection.driver.set_trace_callback(lambda statement: begun.append(statement) if "BEGIN" in statement else None)

    await database.write(wait_shortly)
    with closing(sqlite3.connect(tmp_path / "portico.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writes = [database.write(partial(insert_process, marker=f"m{n}")) for n in range(5)]
        results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * 5
    # The thread may begin with the first one before the others are queued.
    assert 1 <= len(begun) <= 2 and not await database.read(markers)


async def test_group_whose_commit_fails_is_not_executed_again(database: Database, block_writer: threading.Event) -> None:
    calls = 0
    on_sqlite = kind() == "sqlite"
    error = sqlite3.OperationalError("disk I/O error") if on_sqlite else RuntimeError("the disk is gone")

    def write(connection: Connection) -> None:
        nonlocal calls
        calls += 1

    def fail(connection: Connection) -> None:
        if calls:
            raise error

    with before_commits(fail):
        writes = [asyncio.create_task(database.write(write)) for _ in range(3)]
        await asyncio.sleep(0)
        block_writer.set()
        results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable if on_sqlite else RuntimeError] * 3
    assert calls == 3


async def test_large_write_for_which_the_disk_is_full_does_not_affect_those_that_are_queued_with_it(
    database: Database, commits: list[Backend], block_writer: threading.Event
) -> None:
    full: sqlite3.Error | psycopg.Error = psycopg.errors.DiskFull("could not extend file")
    if kind() == "sqlite":
        full = sqlite3.OperationalError("database or disk is full")
        full.sqlite_errorcode = sqlite3.SQLITE_FULL

    def fail(connection: Connection) -> None:
        # As a disk that has space for each of the others.
        if "large" in markers(connection):
            raise full

    with before_commits(fail):
        names = ["m1", "large", "m2"]
        writes = [asyncio.create_task(database.write(partial(insert_process, marker=name))) for name in names]
        await asyncio.sleep(0)
        block_writer.set()
        results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), StoreFull, type(None)]
    assert await database.read(markers) == ["m1", "m2"]
    assert len(commits) == BLOCKER + 2


async def test_write_that_raises_what_a_future_does_not_accept_does_not_affect_the_others(
    database: Database, block_writer: threading.Event
) -> None:
    def stop(connection: Connection) -> None:
        next(iter(()))

    writes = [asyncio.create_task(database.write(write)) for write in (stop, partial(insert_process, marker="m1"))]
    await asyncio.sleep(0)
    block_writer.set()
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results] == [RuntimeError, type(None)]


async def test_closing_after_abandon_does_not_wait_for_a_blocked_write(tmp_path: Path) -> None:
    database = await Database.open(store_url(tmp_path))
    began, release = threading.Event(), threading.Event()

    def block(connection: Connection) -> None:
        began.set()
        release.wait(60)

    blocked = asyncio.create_task(database.write(block))
    await asyncio.to_thread(began.wait)
    try:
        database.abandon()
        async with asyncio.timeout(30):
            await database.close()
        with pytest.raises(StoreAbandoned):
            await blocked
    finally:
        release.set()
    # Then the connections are closed, too.
    for thread in threading.enumerate():
        if thread.name == "store-closer":
            await asyncio.to_thread(thread.join, 30)
            assert not thread.is_alive()
    if kind() == "sqlite":
        assert os.listdir(tmp_path) == ["portico.db"], "the last connection removes the log"
    else:
        others = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        await wait_until(lambda: not sql(tmp_path, others))


async def test_a_write_that_waits_when_the_store_is_abandoned_changes_nothing(tmp_path: Path) -> None:
    database = await Database.open(store_url(tmp_path))
    began, release = threading.Event(), threading.Event()
    executed = list[Connection]()

    def block(connection: Connection) -> None:
        began.set()
        release.wait(60)

    blocked = asyncio.create_task(database.write(block))
    await asyncio.to_thread(began.wait)
    waiting = asyncio.create_task(database.write(executed.append))
    await asyncio.sleep(0)
    database.abandon()
    release.set()
    ends = await asyncio.gather(blocked, waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [StoreAbandoned, StoreAbandoned]
    await database.close()
    await asyncio.to_thread(database._writer.shutdown)
    assert executed == []


@pytest.mark.sqlite_only
async def test_freed_space_is_returned_but_for_a_tenth(tmp_path: Path) -> None:
    file = tmp_path / "portico.db"
    database = await Database.open(store_url(tmp_path))
    try:
        await database.write(partial(insert_rows, first=1, last=500))
        await database.write(partial(delete_rows, behind=20))
        await database.read(checkpoint)
        before = file.stat().st_size
        await database.release_space()
        released = before - file.stat().st_size
        assert await database.read(lambda connection: connection.value("SELECT count(*) FROM events")) == 20
    finally:
        await database.close()
    assert released > 0.8 * before
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        [free], [pages] = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("freelist_count", "page_count"))
    assert 0 < free <= 0.1 * pages + 1


@pytest.mark.sqlite_only
async def test_one_transaction_releases_many_pages(tmp_path: Path) -> None:
    def pages(connection: Connection) -> int:
        return int(connection.value("PRAGMA page_count"))

    def inserted_and_released(connection: Connection) -> bool:
        insert_rows(connection, 1, 1)
        return release_pages(connection)

    database = await Database.open(store_url(tmp_path))
    try:
        await database.write(partial(insert_rows, first=1, last=400))
        await database.write(partial(delete_rows, behind=0))
        before = await database.read(pages)
        assert await database.write(release_pages)
        assert await database.read(pages) == before - RELEASED_PAGES
        # As in a group of writes.
        assert await database.write(inserted_and_released)
        assert await database.read(pages) == before - 2 * RELEASED_PAGES
    finally:
        await database.close()


@pytest.mark.sqlite_only
async def test_space_that_cannot_be_released_is_left(database: Database) -> None:
    def ignored(action: int, name: str | None, *_: str | None) -> int:
        # As with a full disk: SQLite removes no page and reports no error.
        return sqlite3.SQLITE_IGNORE if action == sqlite3.SQLITE_PRAGMA and name == "incremental_vacuum" else sqlite3.SQLITE_OK

    await database.write(partial(insert_rows, first=1, last=100))
    await database.write(partial(delete_rows, behind=0))
    await database.write(lambda connection: connection.driver.set_authorizer(ignored))
    assert await database.read(surplus_pages)
    async with asyncio.timeout(10):
        await database.release_space()
    assert await database.read(surplus_pages)
