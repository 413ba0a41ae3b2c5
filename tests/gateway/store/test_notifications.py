"""Notifications of PostgreSQL about the logs that a transaction has written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.store import Store
from tests import stores


@pytest.mark.one_store
async def test_a_group_of_writes_of_many_logs_is_one_transaction(tmp_path: Path) -> None:
    ids = [f"sess_{number:032x}" for number in range(500)]
    with stores.use("postgresql"):
        store = await Store.open(stores.store_url(tmp_path))
    loop, stopped = asyncio.get_running_loop(), threading.Event()
    listening, complete, received = asyncio.Event(), asyncio.Event(), set[str]()

    def notified(log_ids: Sequence[str] | None) -> None:
        if log_ids is None:
            loop.call_soon_threadsafe(listening.set)
            return
        received.update(log_ids)
        if received >= {*ids}:
            loop.call_soon_threadsafe(complete.set)

    thread = threading.Thread(target=store.listen, args=(notified, stopped))
    thread.start()
    try:
        await asyncio.wait_for(listening.wait(), 10)
        database = store._database
        await loop.run_in_executor(database._writer, database._write, lambda connection: None, ids)
        await asyncio.wait_for(complete.wait(), 10)
    finally:
        stopped.set()
        await store.stop_listening()
        await asyncio.to_thread(thread.join)
        await store.close()
