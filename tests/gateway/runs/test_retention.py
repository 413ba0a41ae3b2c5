"""Retention: after the start and daily while the gateway runs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.config import StoreSettings
from gateway.errors import StoreUnavailable
from gateway.observability.transcripts import Transcripts
from gateway.runs.retention import CHECK_INTERVAL, DAY, START_DELAY, Retention
from gateway.security.authentication import ADMINISTRATOR
from gateway.security.redaction import Redactor
from gateway.store import AuditRecord, EventRow, KeyRecord, MessageRow, RunRecord, SessionRecord, Store
from gateway.store.runs import RunRepository
from tests.support.daemon import create_database, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import create_session, execute, send_turn
from tests.support.stores import sql, store_url
from tests.support.waiting import wait_until

KEPT = StoreSettings(keep_executions_days=2.0, keep_audit_days=2.0, keep_keys_days=2.0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    found = await Store.open(store_url(tmp_path))
    yield found
    await found.close()


async def store_everything(store: Store, folder: Path) -> None:
    """Store what expires: an ended and a running execution with its keys, the key of a session, and a decision."""
    await store.sessions.create(SessionRecord("sess_a", "echo"), [], key=KeyRecord("key of sess_a", "d", "sess_a", 1))
    for log_id, state in (("exec_ended", "ended"), ("exec_runs", "running")):
        await store.runs.start(RunRecord(f"run of {log_id}", log_id, state, None, 1), key=KeyRecord(log_id, "d", log_id, 1))
        await store.events.append(EventRow(log_id, 1, 1, b'{"kind":"agent_token","text":"x"}'))
    await store.audit.append([AuditRecord(time.time(), "sess_a", "r", "echo", "shell", "c", "trusted", "trust", None, "{}")])
    await asyncio.to_thread(write_transcript, folder)


def write_transcript(folder: Path) -> None:
    folder.mkdir()
    (folder / "exec_ended.jsonl").write_text("")


async def stored(store: Store, folder: Path) -> dict[str, bool]:
    return {
        "ended": bool(await store.events.read("exec_ended", 0)),
        "key": await store.idempotency_keys.get("exec_ended") is not None,
        "running": bool(await store.events.read("exec_runs", 0)),
        "key of the running": await store.idempotency_keys.get("exec_runs") is not None,
        "key of the session": await store.idempotency_keys.get("key of sess_a") is not None,
        "audit": bool(await store.audit.newest(1)),
        "transcript": (folder / "exec_ended.jsonl").exists(),
    }


async def test_what_an_interrupted_deletion_has_left_is_deleted(store: Store, tmp_path: Path) -> None:
    for session in ("deleted", "kept"):
        await store.sessions.create(SessionRecord(session, "echo"), [MessageRow("{}")] * 1000)
        await store.events.append(EventRow(session, 1, 1, b"{}"))
    await store.sessions.delete("deleted")
    assert await store.sessions.delete_part("deleted")
    await Retention(store, Transcripts(tmp_path, Redactor()), KEPT, no_sessions).delete_expired(time.time())
    assert [sql(tmp_path, f"SELECT count(*) FROM {table}") for table in ("histories", "messages", "events")] == [
        [(1,)], [(1000,)], [(1,)],
    ]  # fmt: skip


async def no_sessions(time: float) -> None:
    raise AssertionError("sessions are kept for ever by default")


async def test_expired_data_is_deleted_daily(
    store: Store, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "transcripts"
    await store_everything(store, folder)
    kept = Retention(store, Transcripts(folder, Redactor()), KEPT, no_sessions, clock)
    deletions = 0
    delete = store.audit.delete_before

    async def counted(made: float) -> None:
        nonlocal deletions
        deletions += 1
        await delete(made)
        if deletions == 2:
            raise OSError("disk full")

    monkeypatch.setattr(store.audit, "delete_before", counted)
    kept.start()
    assert all((await stored(store, folder)).values())

    await clock.expire(START_DELAY)
    await wait_until(lambda: deletions == 1 and clock.waiting)
    await clock.advance(0.9 * DAY)
    assert deletions == 1
    await clock.advance(0.2 * DAY)
    # It does not wait while it deletes.
    await wait_until(lambda: deletions == 2 and clock.waiting)
    # A failure does not end it.
    await clock.advance(1.1 * DAY)
    await wait_until(lambda: deletions == 3 and clock.waiting)
    assert not (folder / "exec_ended.jsonl").exists()
    expected = {"running": True, "key of the running": True}
    assert await stored(store, folder) == {**dict.fromkeys(await stored(store, folder), False), **expected}
    # A clock that is set back.
    clock.set_wall_clock(-30 * DAY)
    await clock.advance(CHECK_INTERVAL)
    await wait_until(lambda: deletions == 4 and clock.waiting)
    await kept.close()
    await clock.advance(2 * DAY)
    assert deletions == 4


async def test_everything_expired_is_deleted_where_space_cannot_be_released(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full() -> None:
        raise StoreUnavailable("database or disk is full")

    folder = tmp_path / "transcripts"
    await store_everything(store, folder)
    monkeypatch.setattr(store, "release_space", full)
    with pytest.raises(StoreUnavailable):
        await Retention(store, Transcripts(folder, Redactor()), KEPT, no_sessions).delete_expired(time.time() + 3 * DAY)
    assert {name for name, is_there in (await stored(store, folder)).items() if is_there} == {"running", "key of the running"}


async def test_clock_that_is_set_forward_after_the_start_does_not_affect_the_first_deletion(
    store: Store, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, forgotten = tmp_path / "transcripts", asyncio.Event()
    await store_everything(store, folder)
    forget, loop = Transcripts.forget_tasks, asyncio.get_running_loop()

    def observed(transcripts: Transcripts, older: float) -> None:
        forget(transcripts, older)
        loop.call_soon_threadsafe(forgotten.set)

    monkeypatch.setattr(Transcripts, "forget_tasks", observed)
    kept = Retention(store, Transcripts(folder, Redactor()), KEPT, no_sessions, clock)
    kept.start()
    clock.set_wall_clock(3650 * DAY)
    await clock.expire(START_DELAY)
    await forgotten.wait()
    assert all((await stored(store, folder)).values())
    await kept.close()


async def test_gateway_deletes_expired_data_while_it_runs(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, forget = 0, Transcripts.forget_tasks

    def counted(transcripts: Transcripts, older: float) -> None:
        nonlocal passes
        forget(transcripts, older)
        passes += 1

    monkeypatch.setattr(Transcripts, "forget_tasks", counted)
    async with run_gateway(gateway_config(tmp_path, store={"keep_executions_days": 1e-9}), clock) as running:
        await clock.expire(START_DELAY)
        await clock.waited_for(CHECK_INTERVAL)
        assert passes == 1
        await execute(running.client, driver="echo", idempotency_key="key")
        file = running.gateway.settings.data_dir / "transcripts" / "exec_old.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
        os.utime(file, (0, 0))
        await clock.advance(0.9 * DAY)
        assert file.exists()
        await clock.advance(0.2 * DAY)
        await wait_until(lambda: not file.exists())


async def test_gateway_serves_before_the_first_deletion_has_ended(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()
    delete = RunRepository.delete_executions

    async def delayed(runs: RunRepository, started: float) -> None:
        began.set()
        await may_end.wait()
        await delete(runs, started)

    monkeypatch.setattr(RunRepository, "delete_executions", delayed)
    config = gateway_config(tmp_path)
    data_dir = Path(config["server"]["data_dir"])
    await create_database(data_dir)
    earlier = await Store.open(store_url(data_dir))
    with monkeypatch.context() as past:
        past.setattr(time, "time", lambda: 0.0)
        await earlier.runs.start(RunRecord("run_old", "exec_old", "ended", "end_turn", 1))
    await earlier.close()
    async with run_gateway(config, clock) as running:
        await clock.expire(START_DELAY)
        await began.wait()
        assert await execute(running.client, driver="echo")
        store = running.gateway.store
        assert await store.runs.last("exec_old") is not None
        may_end.set()

        async def deleted() -> bool:
            return await store.runs.last("exec_old") is None

        await wait_until(deleted)


async def test_gateway_closes_in_the_middle_of_a_deletion(
    store: Store, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = asyncio.Event()

    async def endless(runs: RunRepository, started: float) -> None:
        began.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(RunRepository, "delete_executions", endless)
    kept = Retention(store, Transcripts(tmp_path / "transcripts", Redactor()), KEPT, no_sessions, clock)
    kept.start()
    await clock.expire(START_DELAY)
    await began.wait()
    await kept.close()


async def test_sessions_are_deleted_by_their_last_use_if_the_configuration_says_so(store: Store, tmp_path: Path) -> None:
    asked: list[float] = []

    async def delete_sessions(time: float) -> None:
        asked.append(time)

    for days in (0.0, 3.0):
        kept = StoreSettings(keep_sessions_days=days)
        await Retention(store, Transcripts(tmp_path / "transcripts", Redactor()), kept, delete_sessions).delete_expired(10 * DAY)
    assert asked == [7 * DAY]


async def test_unused_sessions_are_deleted(tmp_path: Path, write_scenario: Callable[..., str], each_store: str) -> None:
    """Not those that were used since, that are in use, or that wait for their client."""
    asks = write_scenario({"steps": [{"tool_call": {"name": "write_note", "input": {}, "ask": True}}]})
    config = gateway_config(tmp_path)
    async with run_gateway(config) as running:
        old = (await create_session(running.client, "echo", "old"))["sessionId"]
        used = (await create_session(running.client, "echo", "used again"))["sessionId"]
        grants = [{"name": "write_note"}]
        waiting = await create_session(running.client, "script", "wait", options={"scenario": asks}, grants=grants)
        assert waiting["stopReason"] == "tool_use"
        data_dir = running.gateway.settings.data_dir
    sql(data_dir, "UPDATE sessions SET created_at = 0")
    sql(data_dir, "UPDATE runs SET started_at = 0")
    sql(data_dir, "UPDATE runs SET ended_at = 0 WHERE state = 'ended'")
    async with run_gateway(config) as running:
        new = (await create_session(running.client, "echo", "new"))["sessionId"]
        held = await running.gateway.sessions.get(ADMINISTRATOR, new)
        await wait_until(lambda: sql(data_dir, "SELECT 1 FROM runs WHERE log_id = :id AND state = 'ended'", {"id": held.id}))
        # As if its turn was not stored yet.
        sql(data_dir, "UPDATE sessions SET created_at = 0 WHERE id = :id", {"id": held.id})
        sql(data_dir, "UPDATE runs SET started_at = 0, ended_at = 0 WHERE log_id = :id", {"id": held.id})
        await send_turn(running.client, used, {"role": "user", "content": "now"})
        await running.gateway.sessions.delete_unused(time.time() - DAY)
        assert set((await running.client.get("/sessions")).json()["sessions"]) == {used, new, waiting["sessionId"]}
        assert (await running.client.get(f"/session/{old}")).status_code == 404
