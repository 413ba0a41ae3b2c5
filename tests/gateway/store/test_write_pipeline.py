"""Transactions that write, whose statements PostgreSQL answers together: their errors, and what happens beside them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.store import EventRow, IntegrityError, KeyStored
from gateway.store.database import Database
from gateway.store.events import insert_events
from gateway.store.idempotency_keys import insert_key
from gateway.store.rows import KeyRecord
from gateway.store.sql import Connection, insert
from tests.support import stores
from tests.support.postgresql import server
from tests.support.postgresql_proxy import Proxy, port_of

KEY = KeyRecord(key="key", digest="digest", log_id="log", first_seq=1)
INSERT = insert("events", ("log_id", "first", "last", "body"))


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    found = await Database.open(stores.store_url(tmp_path))
    yield found
    await found.close()


def add(first: int) -> Callable[[Connection], None]:
    return lambda connection: insert_events(connection, EventRow("log", first, first, b"{}"))


def count(connection: Connection) -> int:
    return int(connection.value("SELECT count(*) FROM events"))


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


async def test_a_statement_that_changes_rows_returns_their_number(database: Database) -> None:
    def transaction(connection: Connection) -> list[int]:
        for number in (1, 2, 3):
            add(number)(connection)
        at = [{"first": 1}, {"first": 9}]
        found = [connection.changed("UPDATE events SET last = 7 WHERE first > :first", values) for values in at]
        return [*found, connection.changed("DELETE FROM events WHERE last = 7")]

    assert await database.write(transaction) == [2, 0, 2]
    assert await database.read(count) == 1


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
async def test_a_transaction_is_one_round_trip_and_one_more_for_what_it_reads() -> None:
    proxy = Proxy(server().port)
    database = await Database.open(server().tcp_url(server().create_database(), port=proxy.port))

    def reading(connection: Connection) -> int:
        add(101)(connection)
        found = count(connection)
        add(102)(connection)
        return found

    def three(connection: Connection) -> None:
        for number in range(3):
            add(number)(connection)

    try:
        port = await database.write(port_of)
        before = proxy.round_trips[port]
        await database.write(three)
        assert proxy.round_trips[port] == before + 1
        assert await database.write(reading) == 4
        assert proxy.round_trips[port] == before + 3
    finally:
        await database.close()
        proxy.close()


@pytest.mark.one_store
async def test_values_that_are_larger_than_the_buffers_of_the_socket_are_sent() -> None:
    running = server()
    name = running.create_database()
    database = await Database.open(running.tcp_url(name))
    data = b"x" * 20_000_000

    def transaction(connection: Connection) -> None:
        given = [{"log_id": "log", "first": n, "last": n, "body": data} for n in (1, 2, 3)]
        connection.execute(INSERT, given[0])
        connection.execute_many(INSERT, given[1:])

    try:
        await asyncio.wait_for(database.write(transaction), 60)
        assert await database.read(lambda connection: connection.values("SELECT length(body) FROM events")) == [len(data)] * 3
    finally:
        await database.close()
