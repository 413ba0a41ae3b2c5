"""EventLog: concurrent readers from any sequence number, and events that are read back from the store."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from drivers.contract.events import AgentToken, SessionEnd
from drivers.contract.messages import AssistantMessage, UserMessage
from gateway.errors import LeaseLost, StoreUnavailable
from gateway.events.event_log import REQUEST_TIMEOUT, RETRY, STOP_TIMEOUT, EventLog, LogLimits
from gateway.store import EventRow, KeyRecord, MessageRow, RunRecord, SessionRecord, Store
from gateway.store.sqlite import sqlite_url
from tests.support.faulty_store import FaultyStore
from tests.support.manual_clock import ManualClock
from tests.support.stored_messages import delete_session
from tests.support.waiting import wait_until


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FaultyStore]:
    found = await FaultyStore.open(sqlite_url(tmp_path))
    yield found
    await found.close()


def tokens(numbers: Iterable[int], size: int = 0) -> list[AgentToken]:
    return [AgentToken(text=f"{number} {'x' * size}") for number in numbers]


async def read_all(log: EventLog, last: int, after: int = 0) -> list[int]:
    """Return the sequence numbers up to `last`; the text of each event must be its sequence number."""
    found: list[int] = []
    while after < last:
        entries = await asyncio.wait_for(log.read(after), 60)
        for entry in entries:
            assert isinstance(entry.event, AgentToken)
            assert entry.event.text.split()[0] == str(entry.seq)
            assert entry.data == entry.event.encode()
        found += [entry.seq for entry in entries]
        after = found[-1]
    return found


@pytest.mark.parametrize("kept", [0, 5_000, 10**9])
async def test_reader_gets_all_events_from_memory_and_store(store: Store, kept: int) -> None:
    log = EventLog("log", store, limits=LogLimits(kept=kept, row=10_000))
    for start in range(1, 5001, 500):
        log.append(tokens(range(start, start + 500), 20))
    await log.written()
    for after in (0, 1, 2500, 4990, 4999):
        assert await read_all(log, 5000, after) == list(range(after + 1, 5001))
    assert await read_all(EventLog("log", store, await store.events.last_seq("log")), 5000) == list(range(1, 5001))


async def test_only_newest_events_are_in_memory(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = store.events.read

    async def recording(log_id: str, after: int, rows: int = 16) -> list[tuple[int, bytes]]:
        reads.append(after)
        return await read(log_id, after, rows)

    monkeypatch.setattr(store.events, "read", recording)
    log = EventLog("log", store, limits=LogLimits(kept=10_000))
    log.append(tokens(range(1, 1001), 100))
    await log.written()
    assert await read_all(log, 1000, 990) == list(range(991, 1001))
    assert not reads
    assert await read_all(log, 1000) == list(range(1, 1001))
    assert reads[0] == 0


async def test_events_keep_their_numbers_when_older_ones_leave_memory(store: Store) -> None:
    log = EventLog("log", store, limits=LogLimits(kept=100_000))
    for start in range(1, 2001, 100):
        log.append(tokens(range(start, start + 100)))
        await log.written()
    for after in (0, 1500, 1700, 1850, 1990):
        assert await read_all(log, 2000, after) == list(range(after + 1, 2001))


async def test_stored_events_are_kept_as_json_without_their_objects(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog("log", store)
    for start in (1, 1001):
        log.append(tokens(range(start, start + 1000)))
        await log.written()
    log.append([AgentToken(text="2001 newest")])
    await log.written()
    kept = [found for found in gc.get_objects() if type(found) is AgentToken and found.text.endswith(" ")]
    assert not kept
    monkeypatch.setattr(store.events, "read", None)
    for after in (0, 500, 1999, 2000):
        assert await read_all(log, 2001, after) == list(range(after + 1, 2002))


async def test_readers_follow_a_growing_log(store: Store) -> None:
    log = EventLog("log", store, limits=LogLimits(kept=2_000, row=1_000))
    readers = [asyncio.create_task(read_all(log, 3000, after)) for after in (0, 0, 100, 2999)]
    for number in range(1, 3001):
        log.append(tokens([number]))
        if number % 7 == 0:
            await asyncio.sleep(0)
    readers += [asyncio.create_task(read_all(log, 3000))]
    for reader, after in zip(readers, (0, 0, 100, 2999, 0), strict=True):
        assert await reader == list(range(after + 1, 3001))


async def test_cancelled_read_loses_no_event(store: Store) -> None:
    log = EventLog("log", store)
    for _ in range(3):
        reader = asyncio.create_task(log.read(0))
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.wait([reader])
    log.append(tokens([1]))
    assert await read_all(log, 1) == [1]


async def test_final_event_is_stored_before_it_is_published(store: Store, tmp_path: Path) -> None:
    await store.runs.start(RunRecord("run", "log", "running", None, 1))
    log = EventLog("log", store)
    log.append(tokens([1, 2]))
    reader = asyncio.create_task(log.read(2))
    end, stored = SessionEnd(exit_code=0, stop_reason="refusal"), list[bool]()

    def ended() -> None:
        with closing(sqlite3.connect(tmp_path / "portico.db")) as connection:
            stored.extend(connection.execute("SELECT count(*) FROM events WHERE last = 3").fetchone())
        assert not reader.done()

    await log.written()
    await log.end_turn("run", end, 1.0, ended=ended)
    assert stored == [1]
    assert [first for first, _ in await store.events.read("log", 0)] == [1, 3]
    assert await store.runs.last("log") == RunRecord("run", "log", "ended", "refusal", 1)
    assert [entry.event for entry in await reader] == [end]
    assert [e.event for e in await EventLog("log", store, 3).read(2)] == [end]


async def test_events_that_are_appended_while_a_number_is_reserved_follow_it(store: Store) -> None:
    log = EventLog("log", store)
    log.append(tokens([1]))
    async with log.reserved(*tokens([2, 3])) as entries:
        log.append(tokens([4]))
        assert ([entry.seq for entry in entries], log.last) == ([2, 3], 1)
        await store.events.append(log.row(entries))
    assert await read_all(log, 4) == [1, 2, 3, 4]
    with pytest.raises(OSError, match="disk full"):
        async with log.reserved(tokens([5])[0]):
            log.append(tokens([5]))
            raise OSError("disk full")
    assert await read_all(log, 5) == [1, 2, 3, 4, 5]


async def test_end_of_a_turn_is_published_and_stored_later_when_the_store_fails_for_long(
    store: FaultyStore, clock: ManualClock
) -> None:
    await store.sessions.create(SessionRecord("log", "script"), [], RunRecord("run", "log", "running", None, 1))
    log, stop, end = EventLog("log", store, clock=clock), asyncio.Event(), SessionEnd(exit_code=1, stop_reason="error")
    one, two = UserMessage(content="one"), AssistantMessage(content="two")
    store.faults.fail()
    log.append(tokens([1]), [(0, one)])
    stop.set()
    writing = asyncio.create_task(log.written(stop=stop))
    await clock.expire(STOP_TIMEOUT, by=2)
    assert not await writing
    await log.end_turn("run", end, 1.0, [two], ended=lambda: None, stop=stop)
    assert [entry.event for entry in await log.read(1)] == [end]
    requiring = asyncio.create_task(log.require_written())
    await clock.expire(REQUEST_TIMEOUT)
    with pytest.raises(StoreUnavailable):
        await requiring
    assert await store.events.last_seq("log") == 0
    store.faults.clear()
    await clock.expire(RETRY)
    assert await log.written()
    assert await store.runs.last("log") == RunRecord("run", "log", "ended", "error", 1)
    assert await store.messages.rows("log") == [MessageRow(one.model_dump_json(), 1), MessageRow(two.model_dump_json(), 2)]
    assert [first for first, _ in await store.events.read("log", 0)] == [1, 2]


async def test_events_whose_write_was_committed_though_it_failed_are_stored_once(store: FaultyStore, clock: ManualClock) -> None:
    store.faults.fail("events.append", times=1, committed=True)
    log = EventLog("log", store, clock=clock)
    log.append(tokens([1]))
    log.append(tokens([2]))
    await clock.expire(RETRY)
    assert await log.written()
    assert await read_all(EventLog("log", store, 2), 2) == [1, 2]


async def test_reader_of_a_deleted_log_gets_what_is_in_memory(store: Store) -> None:
    log = EventLog("log", store, limits=LogLimits(kept=10_000))
    log.append(tokens(range(1, 5001)))
    await log.written()
    loaded = EventLog("log", store, log.last)
    for one in (log, loaded):
        await one.delete_stored(lambda: delete_session(store, "log"))
    assert (await log.read(0))[-1].seq == 5000
    assert await loaded.read(0) == []


async def test_nothing_is_stored_for_a_deleted_log(store: FaultyStore) -> None:
    log = EventLog("log", store)

    async def delete() -> None:
        await delete_session(store, "log")

    store.faults.fail("sessions.delete", times=1)
    with pytest.raises(StoreUnavailable):
        await log.delete_stored(delete)
    log.append(tokens([1]))
    assert await log.written()
    assert await store.events.last_seq("log") == 1
    await log.delete_stored(delete)
    log.append(tokens([2]))
    assert await log.written()
    assert await read_all(log, 2) == [1, 2]
    assert await store.events.last_seq("log") == 0


async def test_wait_for_capacity_blocks_while_the_store_is_far_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    go = asyncio.Event()
    append = store.events.append

    async def slow(row: EventRow, messages: Sequence[MessageRow], keys: Sequence[KeyRecord]) -> None:
        await go.wait()
        await append(row, messages, keys)

    monkeypatch.setattr(store.events, "append", slow)
    log = EventLog("log", store, limits=LogLimits(unwritten=10_000))
    log.append(tokens(range(1, 3)))
    await asyncio.wait_for(log.wait_for_capacity(), 1)
    log.append(tokens(range(3, 1001), 100))
    waiting = asyncio.create_task(log.wait_for_capacity())
    assert await read_all(log, 1000) == list(range(1, 1001)), "readers do not wait for the store"
    assert not waiting.done()
    go.set()
    await asyncio.wait_for(waiting, 60)


async def test_events_are_stored_again_after_temporary_failures(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    append, failures = store.events.append, 3

    async def failing(row: EventRow, messages: Sequence[MessageRow], keys: Sequence[KeyRecord]) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise OSError("disk full")
        await append(row, messages, keys)

    monkeypatch.setattr(store.events, "append", failing)
    log = EventLog("log", store, clock=clock)
    log.append(tokens(range(1, 101)))
    for _ in range(3):
        await clock.expire(RETRY)
    await log.written()
    assert caplog.text.count("cannot be stored") == 3
    assert await read_all(EventLog("log", store, 100), 100) == list(range(1, 101))


async def test_an_event_whose_number_another_one_has_is_not_taken_for_stored(store: Store, clock: ManualClock) -> None:
    await store.events.append(EventRow("log", 1, 1, b"{}"))
    log = EventLog("log", store, clock=clock)
    log.append(tokens([1]))
    for _ in range(3):
        await clock.expire(RETRY)
    assert (log.is_stored(1), log.unwritten > 0) == (False, True)
    log.close()
    await clock.outlast(log.written())


# -- stored-first ---------------------------------------------------------------------------------------------------


async def test_stored_first_readers_get_only_stored_events(store: Store) -> None:
    log = EventLog("log", store, stored_first=True, limits=LogLimits(kept=5_000, row=1_000))

    async def follow(after: int) -> list[int]:
        found: list[int] = []
        while after < 2000:
            entries = await log.read(after)
            after = entries[-1].seq
            assert await store.events.last_seq("log") >= after
            found += [entry.seq for entry in entries]
        return found

    readers = [asyncio.create_task(follow(after)) for after in (0, 700, 1999)]
    for start in range(1, 2001, 50):
        log.append(tokens(range(start, start + 50)))
        await asyncio.sleep(0)
    for reader, after in zip(readers, (0, 700, 1999), strict=True):
        assert await asyncio.wait_for(reader, 60) == list(range(after + 1, 2001))


async def test_stored_first_readers_wait_for_a_failing_store_and_get_the_rest_at_the_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, broken = store.events.append, asyncio.Event()

    async def failing(row: EventRow, messages: Sequence[MessageRow], keys: Sequence[KeyRecord]) -> None:
        if row.first > 1:
            broken.set()
            raise OSError("disk full")
        await append(row, messages, keys)

    monkeypatch.setattr(store.events, "append", failing)
    log = EventLog("log", store, stored_first=True)
    log.append(tokens([1]))
    assert [entry.seq for entry in await log.read(0)] == [1]
    log.append(tokens([2, 3]))
    await broken.wait()
    assert [entry.seq for entry in await log.read(0)] == [1]
    reader = asyncio.create_task(log.read(1))
    await asyncio.sleep(0)
    assert not reader.done()
    log.close()
    assert [entry.seq for entry in await reader] == [2, 3]
    assert await log.read(3) == []


async def test_stored_first_reader_gets_the_published_last_event(store: Store) -> None:
    await store.runs.start(RunRecord("run", "log", "running", None, 1))
    log = EventLog("log", store, stored_first=True)
    log.append(tokens([1, 2]))
    await log.end_turn("run", SessionEnd(exit_code=0), 1.0, ended=lambda: None)
    assert [e.seq for e in await log.read(0)] == [1, 2, 3]


async def unstored_end(store: FaultyStore, clock: ManualClock) -> EventLog:
    """Return a stored-first log whose third event, the published end of a turn, and the one before are not stored."""
    await store.runs.start(RunRecord("run", "log", "running", None, 1))
    log, stop = EventLog("log", store, stored_first=True, clock=clock), asyncio.Event()
    log.append(tokens([1]))
    assert await log.written()
    store.faults.fail()
    log.append(tokens([2]))
    await clock.waited_for(RETRY)
    stop.set()
    ending = asyncio.create_task(log.end_turn("run", SessionEnd(exit_code=130), 1.0, ended=lambda: None, stop=stop))
    await clock.expire(STOP_TIMEOUT, by=2)
    await ending
    await clock.waited_for(RETRY)
    assert log.last == 3
    return log


async def test_stored_first_readers_get_the_unstored_end_of_a_turn_when_the_store_works_again(
    store: FaultyStore, clock: ManualClock
) -> None:
    log = await unstored_end(store, clock)
    assert [entry.seq for entry in await log.read(0)] == [1]
    readers = [asyncio.create_task(log.read(after)) for after in (1, 2)]
    await clock.expire(RETRY)
    await clock.waited_for(RETRY)
    assert not any(reader.done() for reader in readers)
    store.faults.clear()
    await clock.expire(RETRY)
    assert await asyncio.wait_for(readers[1], 60) and await store.events.last_seq("log") == 3
    assert (await readers[0])[0].seq == 2
    assert [entry.seq for entry in await log.read(0)] == [1, 2, 3]


async def test_stored_first_readers_get_the_unstored_end_of_a_turn_when_the_store_is_abandoned(
    store: FaultyStore, clock: ManualClock
) -> None:
    log = await unstored_end(store, clock)
    reader = asyncio.create_task(log.read(1))
    store.abandon()
    await clock.expire(RETRY)
    assert [entry.seq for entry in await asyncio.wait_for(reader, 60)] == [2, 3]


async def test_wait_of_a_stopped_run_is_as_long_as_before_once_a_stalled_store_has_stored(
    store: FaultyStore, clock: ManualClock
) -> None:
    log, stop = EventLog("log", store, clock=clock), asyncio.Event()
    store.faults.fail()
    log.append(tokens([1]))
    await clock.waited_for(RETRY)
    writing = asyncio.create_task(log.written(RETRY / 2))
    await clock.expire(RETRY / 2)
    assert not await writing
    store.faults.clear()
    await clock.expire(RETRY / 2)
    # No wait of the log itself sees the success.
    await wait_until(lambda: not log.unwritten)
    log.append(tokens([2]))
    stop.set()
    assert await log.written(stop=stop)


async def test_a_log_that_another_node_has_taken_over_gives_and_stores_nothing_more(store: Store) -> None:
    log = EventLog("log", store, stored_first=True)
    log.append([AgentToken(text="stored")])
    await log.written()
    reading = asyncio.create_task(log.read(1))
    log.append([AgentToken(text="not stored yet")])
    log.lose()
    log.append([AgentToken(text="too late")])
    assert log.unwritten == 0
    for read in (reading, log.read(0)):
        with pytest.raises(LeaseLost):
            await read
    assert await store.events.last_seq("log") == 1
