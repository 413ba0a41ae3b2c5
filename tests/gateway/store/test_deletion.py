"""What has expired, and what a deleted session leaves, is deleted in parts: other writes come in between, and a deletion that is
interrupted is continued.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gateway.store import EventRow, IntegrityError, MessageRow, RunRecord, SessionRecord, Store
from gateway.store.deletion import PART_BYTES, PART_ROWS
from tests.support.stored_messages import delete_session
from tests.support.stores import recorded_commits, sql, store_url

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


LONG = 2 * PART_ROWS + 10
OF_SESSION = ("histories", "messages", "events", "runs")


async def store_long(store: Store, count: int = LONG, size: int = 1) -> None:
    """Store a session with so many messages and their rows of events, and another one."""
    for session in ("long", "other"):
        messages = [MessageRow(f'"{n}{"x" * size}"', None, f"needle {n}") for n in range(count if session == "long" else 3)]
        await store.sessions.create(
            SessionRecord(session, "echo"), messages, RunRecord(f"run of {session}", session, "ended", None, 1)
        )
        for seq in range(1, len(messages) + 1, 50):
            await store.events.append(EventRow(session, seq, seq + 49, b"{}"))


async def found(store: Store) -> list[tuple[str, int | None]]:
    rows = await store.search.find([("needle", True)], None, everybody=True, agent=None, limit=10 * LONG, before=None)
    return [(row.session_id, row.position) for row in rows or ()]


async def test_a_long_session_is_gone_at_once_and_deleted_between_other_writes(store: Store, tmp_path: Path) -> None:
    await store_long(store)
    assert len(await found(store)) == LONG + 3
    with recorded_commits() as commits:
        await store.sessions.delete("long")
        assert len(commits) == 1
    assert await store.sessions.get("long") is None
    others = [("other", 2), ("other", 1), ("other", 0)]
    assert await found(store) == others
    # Not a part of its messages either.
    await store.sessions.create(SessionRecord("fork", "echo"), [], copied=("long", LONG))
    assert await store.messages.count("fork") == 0
    while await store.messages.count("long") == LONG:
        assert await store.sessions.delete_part("long")
    assert await store.sessions.deleted() == ["long"]
    left = [row.body for row in await store.messages.rows("long")]
    # Those that are left have no gap.
    assert 0 < len(left) < LONG and left == [f'"{n}x"' for n in range(len(left))]
    for _ in range(2):
        await delete_session(store, "long")
        assert [count(tmp_path, table) for table in OF_SESSION] == [2, 3, 1, 1]
    assert await store.sessions.deleted() == []
    assert await found(store) == others
    with pytest.raises(IntegrityError):
        await store.messages.append("long", [MessageRow("late")])


async def test_a_message_that_comes_late_is_deleted_or_refused(store: Store, tmp_path: Path) -> None:
    await store_long(store)
    await store.sessions.delete("long")
    assert await store.sessions.delete_part("long")
    # As of another node, which has not heard of the deletion.
    await store.messages.append("long", [MessageRow("late")])
    await delete_session(store, "long")
    with pytest.raises(IntegrityError):
        await store.messages.append("long", [MessageRow("late")])
    assert count(tmp_path, "messages") == 3


async def test_the_number_of_a_deleted_session_is_not_used_before_its_messages_are_deleted(store: Store) -> None:
    await store_long(store)
    await store.sessions.create(SessionRecord("last", "echo"), [MessageRow("{}", None, "needle")])
    await store.sessions.delete("last")
    await store.sessions.create(SessionRecord("next", "echo"), [MessageRow("{}", None, "needle")])
    assert (await found(store))[0] == ("next", 0)
    await delete_session(store, "last")
    assert (await found(store))[0] == ("next", 0)


async def test_parts_of_a_session_are_bounded_in_bytes(store: Store) -> None:
    count = 100
    await store_long(store, count, PART_BYTES // 10)
    with recorded_commits() as commits:
        await delete_session(store, "long")
    assert count / 10 < len(commits) < count / 5
