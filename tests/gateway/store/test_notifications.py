"""Notifications of PostgreSQL about the logs that were written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.store import Store
from gateway.store.postgresql import PostgresqlBackend
from gateway.store.postgresql_notifications import Notifications
from tests import stores

pytestmark = pytest.mark.one_store


class Listener:
    """What a thread that listens is told, in order: the logs of each call, None after a connection."""

    def __init__(self, store: Store) -> None:
        self._loop = asyncio.get_running_loop()
        self._store, self._stopped = store, threading.Event()
        self.told = asyncio.Queue[Sequence[str] | None]()
        self._thread = threading.Thread(target=store.listen, args=(self._notified, self._stopped))
        self._thread.start()

    def _notified(self, log_ids: Sequence[str] | None) -> None:
        self._loop.call_soon_threadsafe(self.told.put_nowait, log_ids)

    async def connected(self) -> None:
        async with asyncio.timeout(10):
            while await self.told.get() is not None:
                pass

    async def all_of(self, log_ids: Sequence[str]) -> int:
        """Wait until all these logs were told. Returns in how many calls."""
        calls, missing = 0, {*log_ids}
        async with asyncio.timeout(10):
            while missing:
                missing.difference_update(await self.told.get() or ())
                calls += 1
        return calls

    async def stop(self) -> None:
        self._stopped.set()
        self._store.stop_listening()
        await asyncio.to_thread(self._thread.join)


def notifications(store: Store) -> Notifications:
    backend = store._database._backend
    assert isinstance(backend, PostgresqlBackend)
    return backend.notifications


async def write(store: Store, *log_ids: str) -> None:
    """A write for each log. Those of one call are committed together, except for the first one."""
    await asyncio.gather(*(store._database.write(lambda connection: None, log_id=log_id) for log_id in log_ids))


@asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[tuple[Store, Listener]]:
    with stores.use("postgresql"):
        store = await Store.open(stores.store_url(folder))
    listener = Listener(store)
    try:
        await listener.connected()
        yield store, listener
    finally:
        await listener.stop()
        await store.close()


def ids(count: int) -> list[str]:
    return [f"sess_{number:032x}" for number in range(count)]


async def test_the_logs_of_a_group_of_writes_need_several_notifications(tmp_path: Path) -> None:
    async with listening(tmp_path) as (store, listener):
        notifications(store).add(ids(500))
        notifications(store).send()
        await listener.all_of(ids(500))


async def test_what_is_written_within_an_interval_is_one_notification_and_the_first_is_sent_at_once(tmp_path: Path) -> None:
    async with listening(tmp_path) as (store, listener):
        notifications(store).interval = 3.0
        first, *others = ids(31)
        await write(store, first)
        async with asyncio.timeout(1.5):
            assert await listener.told.get() == [first]
        for log_id in others:
            await write(store, log_id)
            await write(store, others[0])
        assert await listener.all_of(others) == 1


async def test_what_could_not_be_sent_is_sent_with_the_next_connection(tmp_path: Path) -> None:
    async with listening(tmp_path) as (store, listener):
        # The next connection begins a new interval.
        notifications(store).interval = 86400.0
        await write(store, "sess_1")
        await listener.all_of(["sess_1"])
        await write(store, "sess_2")
        with stores.use("postgresql"):
            stores.cut_listeners(tmp_path)
        await listener.connected()
        await listener.all_of(["sess_2"])


async def test_what_is_written_before_the_stop_is_sent(tmp_path: Path) -> None:
    async with listening(tmp_path) as (store, listener), listening(tmp_path) as (_, elsewhere):
        notifications(store).interval = 86400.0
        await write(store, "sess_1")
        await listener.all_of(["sess_1"])
        await write(store, "sess_2")
        await listener.stop()
        await elsewhere.all_of(["sess_2"])


async def test_who_waits_for_a_write_is_told_before_the_listener_is_woken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(tmp_path) as (store, listener):
        told, woken, send = threading.Event(), list[bool](), notifications(store).send

        def sent() -> None:
            # The event loop goes on while the thread of the writes waits here.
            woken.append(told.wait(10))
            send()

        monkeypatch.setattr(notifications(store), "send", sent)
        await write(store, "sess_1")
        told.set()
        await listener.all_of(["sess_1"])
        assert woken == [True]


async def test_what_was_written_is_sent_by_a_stop_before_the_listener_is_woken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(tmp_path) as (store, listener), listening(tmp_path) as (_, elsewhere):
        # As for a process that stops between the answer to a write and its notification.
        monkeypatch.setattr(notifications(store), "send", lambda: None)
        await write(store, "sess_1")
        await listener.stop()
        await elsewhere.all_of(["sess_1"])


async def test_a_write_that_fails_is_not_notified_and_those_beside_it_are(tmp_path: Path) -> None:
    async with listening(tmp_path) as (store, listener):
        blocked = threading.Event()

        def fail(connection: object) -> None:
            raise LookupError

        first = asyncio.create_task(store._database.write(lambda connection: blocked.wait(10)))
        await asyncio.sleep(0)
        failing = asyncio.create_task(store._database.write(fail, log_id="sess_failed"))
        stored = asyncio.create_task(store._database.write(lambda connection: None, log_id="sess_1"))
        await asyncio.sleep(0)
        blocked.set()
        await asyncio.gather(first, stored)
        with pytest.raises(LookupError):
            await failing
        assert await listener.told.get() == ["sess_1"]


async def test_a_log_that_is_added_while_others_are_sent_is_sent_too(tmp_path: Path) -> None:
    """Many writes, each of which may come at any moment of the thread that sends."""
    async with listening(tmp_path) as (store, listener):
        notifications(store).interval = 0.0
        for log_id in ids(300):
            await write(store, log_id)
            await asyncio.sleep(0)
        await listener.all_of(ids(300))
