"""Statements whose answers a transaction does not wait for: their errors, and what happens beside them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, func, insert, select

from gateway.store import EventRow, IntegrityError, KeyStored, schema
from gateway.store.database import Database
from gateway.store.events import insert_events
from gateway.store.idempotency_keys import insert_key
from gateway.store.rows import KeyRecord
from tests import stores
from tests.postgresql import server

KEY = KeyRecord(key="key", digest="digest", log_id="log", first_seq=1)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    found = await Database.open(stores.store_url(tmp_path))
    yield found
    await found.close()


def add(first: int) -> Callable[[Connection], None]:
    return lambda connection: insert_events(connection, EventRow("log", first, first, b"{}"))


def count(connection: Connection) -> int:
    return int(connection.execute(select(func.count()).select_from(schema.events)).scalar_one())


async def test_a_write_that_fails_does_not_affect_those_that_are_committed_with_it(database: Database) -> None:
    await database.write(add(2))
    blocked = threading.Event()
    first = asyncio.create_task(database.write(lambda connection: blocked.wait(10)))
    await asyncio.sleep(0)
    others = [asyncio.create_task(database.write(add(number))) for number in (1, 2, 3)]
    await asyncio.sleep(0)
    blocked.set()
    assert await first
    results = await asyncio.gather(*others, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), IntegrityError, type(None)]
    assert await database.read(count) == 3


async def test_the_writes_after_one_that_has_failed_are_stored(database: Database) -> None:
    await database.write(add(1))
    for number in (2, 3):
        with pytest.raises(IntegrityError):
            await database.write(add(1))
        await database.write(add(number))
    assert await database.read(count) == 3


async def test_what_is_read_in_a_transaction_includes_what_it_has_written(database: Database) -> None:
    def transaction(connection: Connection) -> list[int]:
        found = []
        for number in (1, 2):
            add(number)(connection)
            found.append(count(connection))
        return found

    assert await database.write(transaction) == [1, 2]


async def test_a_read_beside_a_transaction_does_not_end_it(database: Database) -> None:
    begun, read = threading.Event(), threading.Event()

    def transaction(connection: Connection) -> int:
        add(1)(connection)
        begun.set()
        assert read.wait(10)
        add(2)(connection)
        return count(connection)

    writing = asyncio.create_task(database.write(transaction))
    await asyncio.to_thread(begun.wait, 10)
    assert await database.read(count) == 0
    read.set()
    assert await writing == 2


async def test_a_key_that_is_stored_is_told_from_other_errors_of_its_transaction(database: Database) -> None:
    await database.write(lambda connection: insert_key(connection, KEY))
    with pytest.raises(KeyStored):
        await database.write(lambda connection: insert_key(connection, KEY))
    await database.write(add(1))

    def transaction(connection: Connection) -> None:
        add(1)(connection)
        insert_key(connection, KeyRecord(key="other", digest="digest", log_id="log", first_seq=1))

    with pytest.raises(IntegrityError):
        await database.write(transaction)


@pytest.mark.one_store
@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
async def test_values_that_are_larger_than_the_buffers_of_the_socket_are_sent(local: bool, rows: int) -> None:
    running = server()
    name = running.create_database()
    database = await Database.open(running.url(name) if local else running.tcp_url(name))
    data = b"x" * 20_000_000

    def transaction(connection: Connection) -> None:
        given = [{"log_id": "log", "first": n, "last": n, "body": data} for n in range(1, 1 + rows)]
        connection.execute(insert(schema.events), given[0] if rows == 1 else given).close()

    def sizes(connection: Connection) -> list[int]:
        return list(connection.execute(select(func.length(schema.events.c.body))).scalars())

    try:
        await asyncio.wait_for(database.write(transaction), 60)
        assert await database.read(sizes) == [len(data)] * rows
    finally:
        await database.close()


@pytest.mark.one_store
async def test_a_libpq_without_pipelines_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
    with stores.use("postgresql"):
        database = await Database.open(stores.store_url(tmp_path))
    try:
        await database.write(add(1))
        with pytest.raises(IntegrityError):
            await database.write(add(1))
        await database.write(add(2))
        assert await database.read(count) == 2
    finally:
        await database.close()
