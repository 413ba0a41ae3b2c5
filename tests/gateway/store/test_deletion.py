"""What has expired is deleted in parts: other writes come in between, and a deletion that is interrupted is continued."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gateway.store import SessionRecord, Store
from gateway.store.deletion import PART_BYTES, PART_ROWS
from tests.stores import recorded_commits, sql, store_url

EXPIRED = 5 * PART_ROWS
DELETIONS: dict[str, Callable[[Store], Awaitable[None]]] = {
    "executions": lambda store: store.runs.delete_executions(100.0),
    "keys": lambda store: store.idempotency_keys.delete_before(100.0),
    "audit": lambda store: store.audit.delete_before(100.0),
}
TABLES = {"executions": ("runs", "events", "idempotency_keys"), "keys": ("idempotency_keys",), "audit": ("audit",)}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    found = await Store.open(store_url(tmp_path))
    yield found
    await found.close()


def insert(data_dir: Path, kind: str, names: list[str], at: float, body: bytes = b"{}") -> None:
    if kind == "audit":
        columns = "at, session_id, run_id, agent, tool, call_id, outcome, by, arguments"
        values = ":at, :name, 'r', 'echo', 'shell', 'c', 'trusted', 'trust', '{}'"
        sql(data_dir, f"INSERT INTO audit ({columns}) VALUES ({values})", [{"at": at, "name": name} for name in names])
        return
    begin = "exec" if kind == "executions" else "sess"
    logs = [{"name": name, "log_id": f"{begin}_{name}", "at": at} for name in names]
    sql(data_dir, "INSERT INTO idempotency_keys VALUES (:name, 'd', :log_id, 1, :at)", logs)
    if kind == "executions":
        columns = "id, log_id, state, first_seq, started_at"
        sql(data_dir, f"INSERT INTO runs ({columns}) VALUES ('run_' || :name, :log_id, 'ended', 1, :at)", logs)
        sql(data_dir, "INSERT INTO events VALUES (:log_id, 1, 1, :body)", [{**log, "body": body} for log in logs])


def count(data_dir: Path, table: str) -> int:
    [(found,)] = sql(data_dir, f"SELECT count(*) FROM {table}")
    return int(found)


@pytest.mark.parametrize("kind", DELETIONS)
async def test_writes_come_between_the_parts_and_the_rest_is_deleted_later(store: Store, tmp_path: Path, kind: str) -> None:
    insert(tmp_path, kind, [f"old{n}" for n in range(EXPIRED)], 50.0)
    insert(tmp_path, kind, ["new"], time.time())
    deleting = asyncio.ensure_future(DELETIONS[kind](store))
    for n in range(2):
        await store.sessions.create(SessionRecord(f"sess_{n}", "echo"), [])
    assert not deleting.done()
    deleting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deleting
    left = count(tmp_path, TABLES[kind][-1])
    assert 1 < left <= EXPIRED + 1
    await DELETIONS[kind](store)
    assert [count(tmp_path, table) for table in TABLES[kind]] == [1] * len(TABLES[kind])


async def test_parts_are_bounded_in_bytes(store: Store, tmp_path: Path) -> None:
    insert(tmp_path, "executions", [f"old{n}" for n in range(8)], 50.0, b"x" * (PART_BYTES // 2))
    with recorded_commits() as commits:
        await store.runs.delete_executions(100.0)
    # The keys, the events two by two, the runs.
    assert len(commits) == 1 + 4 + 1
    assert count(tmp_path, "events") == 0
