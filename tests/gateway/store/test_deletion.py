"""What has expired is deleted in parts: other writes come in between, and a deletion that is interrupted is continued."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gateway.store import SessionRecord, Store
from gateway.store.deletion import PART_BYTES, PART_ROWS
from gateway.store.sqlite import sqlite_url

EXPIRED = 5 * PART_ROWS
DELETIONS: dict[str, Callable[[Store], Awaitable[None]]] = {
    "executions": lambda store: store.runs.delete_executions(100.0),
    "keys": lambda store: store.idempotency_keys.delete_before(100.0),
    "audit": lambda store: store.audit.delete_before(100.0),
}
TABLES = {"executions": ("runs", "events", "idempotency_keys"), "keys": ("idempotency_keys",), "audit": ("audit",)}


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    await (await Store.open(sqlite_url(tmp_path))).close()
    return tmp_path / "portico.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[Store]:
    found = await Store.open(sqlite_url(file.parent))
    yield found
    await found.close()


def insert(file: Path, kind: str, names: list[str], at: float, body: bytes = b"{}") -> None:
    with sqlite3.connect(file) as connection:
        for name in names:
            if kind == "audit":
                values = (at, name, "r", "echo", "shell", "c", "trusted", "trust", "{}")
                columns = "at, session_id, run_id, agent, tool, call_id, outcome, by, arguments"
                connection.execute(f"INSERT INTO audit ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
                continue
            log_id = f"exec_{name}" if kind == "executions" else f"sess_{name}"
            connection.execute("INSERT INTO idempotency_keys VALUES (?, 'd', ?, 1, ?)", (name, log_id, at))
            if kind == "executions":
                run = "INSERT INTO runs (id, log_id, state, first_seq, started_at) VALUES (?, ?, 'ended', 1, ?)"
                connection.execute(run, (f"run_{name}", log_id, at))
                connection.execute("INSERT INTO events VALUES (?, 1, 1, ?)", (log_id, body))
    connection.close()


def number(file: Path, query: str) -> int:
    connection = sqlite3.connect(file)
    try:
        return int(connection.execute(query).fetchone()[0])
    finally:
        connection.close()


def count(file: Path, table: str) -> int:
    return number(file, f"SELECT count(*) FROM {table}")


def commits(file: Path) -> int:
    """The number of transactions that the store has committed, which it counts."""
    return number(file, "PRAGMA user_version")


@pytest.mark.parametrize("kind", DELETIONS)
async def test_writes_come_between_the_parts_and_the_rest_is_deleted_later(store: Store, file: Path, kind: str) -> None:
    insert(file, kind, [f"old{n}" for n in range(EXPIRED)], 50.0)
    insert(file, kind, ["new"], time.time())
    deleting = asyncio.ensure_future(DELETIONS[kind](store))
    for n in range(2):
        await store.sessions.create(SessionRecord(f"sess_{n}", "echo"), [])
    assert not deleting.done()
    deleting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deleting
    left = count(file, TABLES[kind][-1])
    assert 1 < left <= EXPIRED + 1
    await DELETIONS[kind](store)
    assert [count(file, table) for table in TABLES[kind]] == [1] * len(TABLES[kind])


async def test_parts_are_bounded_in_bytes(store: Store, file: Path) -> None:
    insert(file, "executions", [f"old{n}" for n in range(8)], 50.0, b"x" * (PART_BYTES // 2))
    before = commits(file)
    await store.runs.delete_executions(100.0)
    # The keys, the events two by two, the runs.
    assert commits(file) - before == 1 + 4 + 1
    assert count(file, "events") == 0
