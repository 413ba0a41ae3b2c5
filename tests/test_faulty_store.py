"""The fault-injecting store fails the writes that it was asked to fail, and no others."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from gateway.errors import StoreUnavailable
from gateway.store import EventRow, RunRecord, SessionRecord, Store
from gateway.store.sqlite import sqlite_url
from tests.support.daemon import gateway_config
from tests.support.faulty_store import DISK_FULL, LOCKED, WRITES, FaultyStore, run_faulty_gateway
from tests.support.requests import create_session


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FaultyStore]:
    found = await FaultyStore.open(sqlite_url(tmp_path))
    yield found
    await found.close()


def event_row(seq: int) -> EventRow:
    return EventRow("log", seq, seq, b"{}")


async def test_writes_fail_from_the_nth_on_a_number_of_times(store: FaultyStore) -> None:
    fault = store.faults.fail("events.append", nth=2, times=2)
    await store.events.append(event_row(1))
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=DISK_FULL):
            await store.events.append(event_row(2))
    await store.runs.start(RunRecord("run", "log", "running", None, 1))
    await store.events.append(event_row(2))
    await fault.raised()
    assert (fault.failures, fault.calls) == (2, 4)
    assert store.faults.operations == {"events.append": 4, "runs.start": 1}
    assert [first for first, _ in await store.events.read("log", 0)] == [1, 2]


async def test_all_writes_fail_for_a_time_or_until_cleared(store: FaultyStore) -> None:
    store.faults.fail(seconds=0.0)
    await store.touch()
    store.faults.fail("processes.*", text=LOCKED, delay=0.01)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=LOCKED):
            await store.processes.started("marker", 1, 1.0)
    await store.sessions.create(SessionRecord("sess_1", "echo"), [])
    store.faults.clear()
    await store.processes.started("marker", 1, 1.0)


async def test_write_may_be_committed_before_it_fails(store: FaultyStore) -> None:
    store.faults.fail("events.append", times=1, committed=True)
    with pytest.raises(StoreUnavailable):
        await store.events.append(event_row(1))
    assert await store.events.last_seq("log") == 1


def test_every_write_of_every_repository_is_named() -> None:
    """But for those of nodes, which no test has fail."""
    repositories = {name: found for name, found in vars(Store(Mock())).items() if not name.startswith("_")}
    sources = {name: inspect.getsource(type(found)) for name, found in repositories.items() if name not in ("leases", "nodes")}
    written = {
        f"{name}.{method.group(1)}"
        for name, source in sources.items()
        for method in re.finditer(
            r"async def (\w+)(?:(?!async def).)*(?:_database\.write\(|delete_in_parts\()", source, re.DOTALL
        )
    }
    assert written | {"release_space", "touch"} == set(WRITES)


async def test_gateway_with_a_faulty_store(tmp_path: Path) -> None:
    async with run_faulty_gateway(gateway_config(tmp_path)) as (portico, faults):
        answer = await create_session(portico.client, "echo", "hello")
        assert answer["stopReason"] == "end_turn"
        assert faults.operations["runs.start"] == faults.operations["runs.stop"] == 1
