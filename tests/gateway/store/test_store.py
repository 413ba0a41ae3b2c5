"""Store: schema versions, transactions and deletion."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from gateway.store import EventRow, KeyRecord, MessageRow, RunRecord, SessionRecord, Store
from gateway.store.sql import NONE, Connection
from tests.support.daemon import Daemon
from tests.support.stored_messages import delete_session, message_bodies
from tests.support.stores import sql, store_url


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    found = await Store.open(store_url(tmp_path))
    yield found
    await found.close()


@pytest.mark.one_store
async def test_daemon_does_not_start_with_a_database_of_another_version(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    await (await Store.open(store_url(tmp_path / "data"))).close()
    sql(tmp_path / "data", "UPDATE store_version SET version = 99")
    with pytest.raises(RuntimeError, match="version 99"):
        await daemon.start()
    assert await daemon.stop() != 0


async def test_store_works_after_writes_are_cancelled_at_any_point(store: Store) -> None:
    await store.sessions.create(SessionRecord("s", "echo"), [])
    for turns in range(40):
        writing = asyncio.create_task(
            store.runs.start(RunRecord(f"r{turns}", "s", "running", None, 1), [MessageRow(str(turns), 1)])
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        await store.messages.append("s", [MessageRow("after")])
    messages = await message_bodies(store, "s")
    runs = {int(run.id[1:]) for run in await store.runs.unfinished()}
    assert messages.count("after") == 40
    # The run and its message are stored together or not at all.
    assert {int(message) for message in messages if message != "after"} == runs


async def test_run_and_its_messages_are_stored_in_one_transaction(store: Store) -> None:
    await store.sessions.create(SessionRecord("s", "echo"), [MessageRow("1")])
    run = RunRecord("r", "s", "running", None, 1)
    await store.runs.start(run, [MessageRow("2", 1)])
    with pytest.raises(Exception, match=r"(?i)unique"):
        await store.runs.start(run, [MessageRow("3", 1)])
    assert await message_bodies(store, "s") == ["1", "2"]
    assert await store.runs.unfinished() == [run]
    await store.runs.stop("r", "ended", "end_turn", EventRow("s", 1, 1, b"{}"))
    assert await store.runs.unfinished() == []


async def test_deleted_session_leaves_no_rows(store: Store, tmp_path: Path) -> None:
    for session in ("gone", "kept"):
        await store.sessions.create(SessionRecord(session, "echo", secrets=b"encrypted"), [MessageRow("{}")])
        await store.runs.start(RunRecord(f"run of {session}", session, "ended", "end_turn", 1))
        await store.events.append(EventRow(session, 1, 1, b"{}"))
    await delete_session(store, "gone")
    tables = {"sessions": "id", "histories": "session_id", "messages": "session_id", "runs": "log_id", "events": "log_id"}
    for table, column in tables.items():
        assert sql(tmp_path, f"SELECT {column} FROM {table}") == [("kept",)]


async def test_last_run_of_each_log(store: Store) -> None:
    for log in ("a", "b", "c"):
        await store.sessions.create(SessionRecord(log, "echo"), [], RunRecord(f"{log}1", log, "waiting", None, 1))
    for number in (2, 10):
        await store.runs.start(RunRecord(f"a{number}", "a", "running", None, number))
    await store.runs.stop("b1", "ended", "refusal", EventRow("b", 1, 1, b"{}"))
    assert await store.runs.last_of_each(["a", "b", "none"]) == {
        "a": RunRecord("a10", "a", "running", None, 10),
        "b": RunRecord("b1", "b", "ended", "refusal", 1),
    }
    assert await store.runs.last_of_each([]) == {}


async def test_old_executions_are_deleted(store: Store) -> None:
    for name in ("exec_old", "exec_new"):
        if name == "exec_new":
            cut = time.time()
        key = KeyRecord(f"key of {name}", "digest", name, 1)
        await store.runs.start(RunRecord(f"run of {name}", name, "ended", "end_turn", 1), key=key)
        await store.events.append(EventRow(name, 1, 1, b"{}"))
    await store.runs.delete_executions(cut)
    await store.idempotency_keys.delete_before(time.time())
    assert await store.idempotency_keys.get("key of exec_old") is None
    assert await store.idempotency_keys.get("key of exec_new") == key
    assert await store.events.read("exec_old", 0) == []
    assert await store.runs.last("exec_old") is None
    assert len(await store.events.read("exec_new", 0)) == 1


async def test_old_keys_of_sessions_are_deleted_and_their_runs_kept(store: Store) -> None:
    await store.sessions.create(SessionRecord("s", "echo"), [])
    for name, seq in (("old", 1), ("new", 2)):
        if name == "new":
            cut = time.time()
        run = RunRecord(f"run of {name}", "s", "ended", "end_turn", seq)
        await store.runs.start(run, [], EventRow("s", seq, seq, b"{}"), KeyRecord(name, "digest", "s", seq))
    await store.runs.delete_executions(time.time())
    await store.idempotency_keys.delete_before(cut)
    assert await store.idempotency_keys.get("old") is None
    assert await store.idempotency_keys.get("new") == KeyRecord("new", "digest", "s", 2)
    assert len(await store.events.read("s", 0)) == 2
    assert [await store.runs.first_seq("s", seq) for seq in (0, 1, 2, 9)] == [1, 1, 2, 2]


async def test_error_of_a_failed_statement_does_not_contain_its_values(store: Store) -> None:
    with pytest.raises(Exception, match=r"(?i)foreign key") as failure:
        await store.messages.append("none", [MessageRow("text of the user")])
    assert "text of the user" not in str(failure.value)


@pytest.mark.sqlite_only
async def test_a_page_of_a_list_reads_no_other_sessions(store: Store) -> None:
    """Whoever asks: an index has the sessions in the order of the list."""
    queries = list[tuple[str, Any]]()
    execute = Connection.execute

    def executed(self: Connection, query: str, values: Any = NONE) -> Any:
        if not query.startswith("PRAGMA"):
            queries.append((query, values))
        return execute(self, query, values)

    with patch.object(Connection, "execute", executed):
        for owner in ("me", None):
            for after in ((1.0, "s"), None):
                await store.sessions.page(5, after, owner)
                await store.sessions.page_of_agent("echo", owner, 5, after)
    assert len(queries) == 8
    for query, values in queries:
        steps = await store._database.read(lambda connection: connection.rows(f"EXPLAIN QUERY PLAN {query}", values))  # noqa: B023
        assert "USE TEMP B-TREE FOR ORDER BY" not in [step for *_, step in steps]
