"""Stores of newer versions: which ones a program opens, and what it leaves alone in them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, text

from gateway.errors import ConfigError
from gateway.store import EventRow, MessageRow, RunRecord, SessionRecord, Store, database, migrations, schema
from gateway.store.copying import copy_store
from gateway.store.database import Database
from gateway.store.migrations import COMPATIBLE_FROM, STEPS, Step
from gateway.store.nodes import NodeReport
from gateway.store.sqlite import sqlite_url
from gateway.store.versions import StoreTooNew
from tests import stores

NEWER = schema.VERSION + 1


async def make_newer(folder: Path, compatible_from: int) -> str:
    """A store as a newer program leaves it, with a column and a table more. Returns its URL."""
    url = stores.store_url(folder)
    await (await Store.open(url)).close()
    stores.sql(folder, "ALTER TABLE sessions ADD COLUMN mood TEXT")
    stores.sql(folder, "ALTER TABLE events ADD COLUMN mood INTEGER NOT NULL DEFAULT 7")
    stores.sql(folder, "CREATE TABLE moods (id INTEGER PRIMARY KEY)")
    stores.sql(folder, f"UPDATE schema_version SET version = {NEWER}, compatible_from = {compatible_from}")
    return url


async def use(store: Store) -> None:
    """Store something in most tables, and read it."""
    await store.sessions.create(SessionRecord("s", "echo"), ['"a"'], RunRecord("r", "s", "running", None, 1))
    await store.events.append(EventRow("s", 1, 1, b"{}"), [MessageRow('"b"', 1)])
    assert await store.events.read("s", 0) == [(1, b"{}")]
    assert (await store.sessions.get("s")) == SessionRecord("s", "echo")
    await store.touch()
    await store.release_space()
    await store.leases.acquire("s", "node", 10.0)
    await store.nodes.start(NodeReport(id="node", address="http://node"), 100.0)
    await store.nodes.beat(NodeReport(id="node", address="http://node"), 10.0)


async def test_a_newer_store_that_is_compatible_is_opened_and_left_as_it_is(tmp_path: Path) -> None:
    url = await make_newer(tmp_path, schema.VERSION)
    for open_it in (Store.open, Store.open_alone, Store.open_unchanged):
        store = await open_it(url)
        if open_it == Store.open_alone:
            await use(store)
        await store.close()
    assert stores.sql(tmp_path, "SELECT version, compatible_from FROM schema_version") == [(NEWER, schema.VERSION)]
    assert stores.sql(tmp_path, "SELECT mood FROM events") == [(7,)]
    assert stores.sql(tmp_path, "SELECT count(*) FROM moods") == [(0,)]


async def test_a_newer_store_that_is_not_compatible_is_refused(tmp_path: Path) -> None:
    url = await make_newer(tmp_path, NEWER)
    for open_it in (Store.open, Store.open_alone, Store.open_unchanged):
        with pytest.raises(ConfigError, match=f"version {NEWER}, for a Portico that reads {NEWER} or newer; this one reads"):
            await open_it(url)


async def test_a_newer_store_is_not_copied(tmp_path: Path) -> None:
    url = await make_newer(tmp_path, schema.VERSION)
    (tmp_path / "copy").mkdir()
    with pytest.raises(ConfigError, match=f"knows only what version {schema.VERSION} has"):
        await copy_store(url, sqlite_url(tmp_path / "copy"))
    assert not list((tmp_path / "copy").iterdir())


async def test_a_node_does_not_start_in_a_store_that_was_migrated_meanwhile(tmp_path: Path) -> None:
    store = await Store.open(stores.store_url(tmp_path))
    try:
        report = NodeReport(id="node", address="http://node")
        await store.nodes.start(report, 100.0)
        stores.sql(tmp_path, f"UPDATE schema_version SET version = {NEWER}, compatible_from = {NEWER}")
        with pytest.raises(StoreTooNew):
            await store.nodes.start(report, 100.0)
        with pytest.raises(StoreTooNew):
            await store.nodes.beat(report, 10.0)
    finally:
        await store.close()


def test_each_step_says_which_programs_can_go_on() -> None:
    assert list(STEPS) == list(range(2, schema.VERSION + 1))
    assert all(step.compatible_from <= version for version, step in STEPS.items())
    assert COMPATIBLE_FROM <= schema.VERSION


@contextmanager
def next_version(monkeypatch: pytest.MonkeyPatch, compatible_from: int = COMPATIBLE_FROM) -> Iterator[None]:
    """This program is of the next version inside, which adds a column to `sessions` and an index to `events`."""

    def change(op: object) -> None:
        op.execute("ALTER TABLE sessions ADD COLUMN mood TEXT")  # type: ignore[attr-defined]
        op.execute("CREATE INDEX events_mood ON events (last)")  # type: ignore[attr-defined]

    with monkeypatch.context() as patch:
        patch.setattr(schema, "VERSION", NEWER)
        patch.setattr(migrations, "STEPS", {**STEPS, NEWER: Step(change, compatible_from)})
        for module in (migrations, database):
            patch.setattr(module, "COMPATIBLE_FROM", max(COMPATIBLE_FROM, compatible_from))
        yield


async def test_a_migration_gives_way_to_those_who_use_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that is open holds it up, and nobody waits behind it for long."""
    with stores.use("postgresql"):
        url = stores.store_url(tmp_path)
        older = await Database.open_as_node(url)
        slowest, writes = 0.0, 0
        with psycopg.connect(url.replace("+psycopg", "")) as holder:
            holder.execute("INSERT INTO sessions (id, agent, config, created_at) VALUES ('s', 'echo', '{}', 0)")
            with next_version(monkeypatch):
                migrating = asyncio.create_task(Store.open_as_node(url, "b"))
                while writes < 30:
                    began = time.monotonic()
                    await older.write(_write)
                    slowest, writes = max(slowest, time.monotonic() - began), writes + 1
                    await asyncio.sleep(0.05)
                assert not migrating.done()
                holder.commit()
                store = await migrating
                await store.close()
        # Half a second behind the migration, and what a busy machine adds; without that limit all would wait for the holder.
        assert slowest < 3.0
        await older.write(_write)
        await older.close()
        assert stores.sql(tmp_path, "SELECT version FROM schema_version") == [(NEWER,)]


def _write(connection: Connection) -> None:
    connection.execute(text("UPDATE sessions SET agent = 'other' WHERE id = 'none'"))


async def test_statements_of_an_older_program_survive_a_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """psycopg prepares a statement on the server once it was executed five times: its plan must not depend on all columns."""
    with stores.use("postgresql"):
        url = stores.store_url(tmp_path)
        older = await Store.open_as_node(url, "a")
        await use(older)
        for _ in range(8):
            assert await older.sessions.get("s") is not None
            await older.nodes.beat(NodeReport(id="node", address="http://node"), 10.0)
        with next_version(monkeypatch):
            await (await Store.open_as_node(url, "b")).close()
        for _ in range(8):
            assert await older.sessions.get("s") is not None
            await older.nodes.beat(NodeReport(id="node", address="http://node"), 10.0)
        await older.close()


async def test_an_earlier_process_of_the_node_itself_does_not_hold_up_its_migration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stores.use("postgresql"):
        url = stores.store_url(tmp_path)
        store = await Store.open_as_node(url, "a")
        await store.nodes.start(NodeReport(id="a", address="http://a", version="0.1.0"), 100.0)
        with next_version(monkeypatch, NEWER), pytest.raises(ConfigError, match=r"a \(http://a, portico 0.1.0, store version"):
            await Store.open_as_node(url, "b")
        # It was killed: its row is left.
        await store.close()
        with next_version(monkeypatch, NEWER):
            with pytest.raises(ConfigError, match=r"a \(http://a, portico 0.1.0, store version"):
                await Store.open_as_node(url, "b")
            await (await Store.open_as_node(url, "a")).close()


async def test_a_lone_daemon_that_runs_is_not_migrated_by_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.store.postgresql.CLAIM_WAIT", "SET LOCAL lock_timeout = '200ms'")
    with stores.use("postgresql"):
        url = stores.store_url(tmp_path)
        store = await Store.open_alone(url)
        with next_version(monkeypatch):
            with pytest.raises(ConfigError, match="another daemon uses the database"):
                await Store.open_alone(url)
            with pytest.raises(ConfigError, match=r"a daemon without \[node\] uses the database"):
                await Store.open_as_node(url)
        assert stores.sql(tmp_path, "SELECT version FROM schema_version") == [(schema.VERSION,)]
        await store.close()
