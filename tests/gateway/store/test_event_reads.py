"""Reads of a log's events: from any number, bounded in bytes, and with the same work wherever in the log they begin."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from gateway.store import EventRow, Store
from gateway.store.events import READ_BYTES
from gateway.store.sql import Connection
from gateway.store.transactions import READERS
from tests.support.stores import store_url

ROWS = 3000


@contextmanager
def counted_steps() -> Iterator[list[int]]:
    """Counts the steps of SQLite's virtual machine on connections that open meanwhile, in hundreds."""
    steps = [0]

    def count() -> int:
        steps[0] += 1
        return 0

    def connected(*given: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*given, **named)
        connection.set_progress_handler(count, 100)
        return connection

    connect = sqlite3.connect
    with patch.object(sqlite3, "connect", connected):
        yield steps


async def connect_all_threads(store: Store) -> None:
    """Let each thread that reads have its connection, which has read the tables."""
    together = threading.Barrier(READERS)

    def read(connection: Connection) -> None:
        connection.rows("SELECT 1 FROM events LIMIT 1")
        together.wait(30)

    await asyncio.gather(*(store._database.read(read) for _ in range(READERS)))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    found = await Store.open(store_url(tmp_path))
    yield found
    await found.close()


async def test_events_are_read_from_any_number(store: Store) -> None:
    for first, last in ((1, 1), (2, 4), (5, 5), (1_000_006, 1_000_007)):
        await store.events.append(EventRow("log", first, last, b"{}"))
        await store.events.append(EventRow("other", first, last, b"{}"))

    async def firsts(after: int) -> list[int]:
        return [first for first, _ in await store.events.read("log", after)]

    # Events 6 to 1,000,005 were lost when the daemon was killed.
    expected = {0: 4, 1: 3, 2: 3, 3: 3, 4: 2, 5: 1, 6: 1, 999_999: 1, 1_000_006: 1, 1_000_007: 0, 2_000_000: 0}
    for after, count in expected.items():
        assert await firsts(after) == [1, 2, 5, 1_000_006][4 - count :], after
    assert await store.events.last_seq("log") == 1_000_007
    assert (await store.events.read("none", 0), await store.events.last_seq("none")) == ([], 0)


async def test_a_read_is_bounded_in_bytes(store: Store) -> None:
    body = b"x" * (READ_BYTES // 2)
    for number in range(1, 6):
        await store.events.append(EventRow("log", number, number, body if number < 5 else 3 * body))
    assert [first for first, _ in await store.events.read("log", 0)] == [1, 2]
    assert [first for first, _ in await store.events.read("log", 2, rows=1)] == [3]
    assert [first for first, _ in await store.events.read("log", 4)] == [5]


@pytest.mark.sqlite_only
async def test_reads_at_the_end_do_not_scan_the_log(tmp_path: Path) -> None:
    await (await Store.open(store_url(tmp_path))).close()
    with sqlite3.connect(tmp_path / "portico.db") as connection:
        rows = [("log", number, number, b"{}") for number in range(1, ROWS + 1)]
        connection.executemany("INSERT INTO events (log_id, first, last, body) VALUES (?, ?, ?, ?)", rows)
    connection.close()
    with counted_steps() as steps:
        store = await Store.open(store_url(tmp_path))
        await connect_all_threads(store)
        before = steps[0]
        assert await store.events.last_seq("log") == ROWS
        assert await store.events.read("log", ROWS - 1) == [(ROWS, b"{}")]
        assert await store.events.read("log", ROWS) == []
        # One step for each row of the log would be 30 times as many.
        assert steps[0] - before < 3
        await store.close()
