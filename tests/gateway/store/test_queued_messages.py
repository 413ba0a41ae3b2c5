"""Queued messages in the store: their order, their settings, and the transaction that begins one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.store import KeyRecord, QueuedRow, RunRecord, SessionRecord, SettingsRecord, Store
from gateway.store.idempotency_keys import KeyStored
from tests.support.stores import store_url


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    found = await Store.open(store_url(tmp_path))
    for session_id in ("s", "other"):
        await found.sessions.create(SessionRecord(session_id, "echo"), [])
    yield found
    await found.close()


def row(message_id: str, **fields: object) -> QueuedRow:
    return QueuedRow(message_id, f'"{message_id}"', 1.5, **fields)  # type: ignore[arg-type]


async def ids(store: Store, session_id: str = "s") -> list[str]:
    return [one.id for one in await store.queued_messages.of(session_id)]


async def test_messages_are_read_as_they_were_stored_in_their_order(store: Store) -> None:
    rows = [
        row("c"),
        row("a", settings=SettingsRecord({"options": {"model": "x"}}, b"\0secret")),
        row("b", key="key", digest="digest"),
    ]
    for one in rows:
        await store.queued_messages.add("s", one)
    await store.queued_messages.add("other", row("d"))
    assert await store.queued_messages.of("s") == rows
    await store.queued_messages.reorder(["b", "c", "a"])
    await store.queued_messages.update("c", '"in other words"')
    await store.queued_messages.add("s", row("last"))
    found = await store.queued_messages.of("s")
    assert [one.id for one in found] == ["b", "c", "a", "last"]
    assert found[1].message == '"in other words"'
    details = await store.sessions.details(["s", "other"])
    assert (details["s"].queued, details["other"].queued) == (4, 1)
    await store.queued_messages.remove("s", "c")
    assert await ids(store) == ["b", "a", "last"]
    await store.sessions.delete("s")
    assert (await ids(store), await ids(store, "other")) == ([], ["d"])


async def test_message_leaves_the_queue_in_the_transaction_that_starts_its_run(store: Store) -> None:
    await store.queued_messages.add("s", row("a"))
    await store.runs.start(RunRecord("first", "other", "running", None, 1), key=KeyRecord("used", "digest", "other", 1))
    run = RunRecord("r", "s", "running", None, 1)
    with pytest.raises(KeyStored):
        await store.runs.start(run, key=KeyRecord("used", "digest", "s", 1), queued="a")
    assert await ids(store) == ["a"]
    await store.runs.start(run, queued="a")
    assert await ids(store) == []


async def test_sessions_whose_queue_goes_on(store: Store) -> None:
    queue = store.queued_messages
    assert await queue.to_begin() == []
    await queue.add("s", row("a"))
    assert await queue.to_begin() == ["s"]
    assert await queue.to_begin(without_lease=True) == ["s"]
    lease = await store.leases.acquire("s", "node", 60)
    assert (await queue.to_begin(without_lease=True), await queue.to_begin()) == ([], ["s"])
    await store.leases.release([("s", lease.token)])
    assert await queue.to_begin(without_lease=True) == ["s"]
    await store.runs.start(RunRecord("r", "s", "waiting", None, 1))
    assert await queue.to_begin() == []
    await store.runs.end(RunRecord("r", "s", "waiting", None, 1), "error")
    assert await queue.to_begin() == ["s"]
    await store.sessions.update("s", queue_stopped="cancelled")
    assert await queue.to_begin() == []
    await queue.add("s", row("b"))
    assert await queue.to_begin() == []
    await queue.add("s", row("c"), go_on=True)
    assert await queue.to_begin() == ["s"]


async def test_queue_without_messages_is_not_stopped(store: Store) -> None:
    for message_id in ("a", "b"):
        await store.queued_messages.add("s", row(message_id))
    await store.sessions.update("s", queue_stopped="cancelled")
    await store.queued_messages.remove("s", "a")
    found = await store.sessions.get("s")
    assert found is not None and found.queue_stopped == "cancelled"
    await store.queued_messages.remove("s", "b")
    found = await store.sessions.get("s")
    assert found is not None and found.queue_stopped is None


async def test_session_with_a_queued_message_is_not_unused(store: Store) -> None:
    await store.queued_messages.add("s", row("a"))
    assert await store.sessions.unused_since(1e12) == ["other"]
