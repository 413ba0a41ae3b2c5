"""The version of a store: one of another version is refused in words and not changed; one process creates the tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from gateway.errors import ConfigError
from gateway.store import SessionRecord, Store, schema
from gateway.store.copying import copy_store
from gateway.store.sql import Connection
from gateway.store.sqlite import sqlite_url
from tests.support import stores
from tests.support.earlier_store import NUMBER, create_earlier_store, write_and_kill


def content(folder: Path) -> Any:
    """Return everything in a store: its files with their modes, or all rows of all tables."""
    if stores.kind() == "sqlite":
        return {file.name: (file.stat().st_mode, file.read_bytes()) for file in folder.iterdir()}
    return {name: stores.sql(folder, f"SELECT * FROM {name}") for name in tables(folder)}


def tables(folder: Path) -> list[str]:
    with stores.connected(stores.store_url(folder)) as connection:
        return sorted(schema.found_tables(connection))


async def refuses(folder: Path, url: str, message: str) -> None:
    """Check that nothing opens a store, and that nothing in it is changed."""
    (folder / "copy").mkdir()
    copy = sqlite_url(folder / "copy")
    await (await Store.open(copy)).close()
    stored = folder / "stored"
    before = content(stored)
    ways = [Store.open, Store.open_alone, Store.open_unchanged, partial(copy_store, target=copy), partial(copy_store, copy)]
    if stores.kind() == "postgresql":
        ways.append(partial(Store.open_as_node, node="a"))
    for open_it in ways:
        with pytest.raises(ConfigError, match=message):
            await open_it(url)
        assert content(stored) == before, open_it


async def test_a_store_from_before_version_1_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "stored").mkdir(mode=0o700)
    url = create_earlier_store(tmp_path / "stored")
    await refuses(
        tmp_path,
        url,
        rf"the store (sqlite|postgresql)://\S+ is from before version 1, .* version {NUMBER}: .* changed nothing. "
        r"`portico store export (sqlite|postgresql)://\S+ --output FILE` .* Then start with an empty store: ",
    )


@pytest.mark.sqlite_only
async def test_an_earlier_store_of_a_killed_daemon_is_not_changed(tmp_path: Path) -> None:
    """The write-ahead log with its last writes stays beside it."""
    (tmp_path / "stored").mkdir(mode=0o700)
    url = create_earlier_store(tmp_path / "stored")
    file = tmp_path / "stored" / "portico.db"
    write_and_kill(file)
    file.chmod(0o644)
    assert {path.name for path in file.parent.iterdir()} == {"portico.db", "portico.db-wal", "portico.db-shm"}
    await refuses(tmp_path, url, f"version {NUMBER}")


async def test_a_store_of_another_version_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "stored").mkdir(mode=0o700)
    url = stores.store_url(tmp_path / "stored")
    await (await Store.open(url)).close()
    stores.sql(tmp_path / "stored", "UPDATE store_version SET version = 99")
    stores.sql(tmp_path / "stored", "DROP TABLE audit")
    await refuses(
        tmp_path,
        url,
        rf"is of version 99, and this Portico reads version {schema.VERSION} only: it has changed nothing. Install the version",
    )


async def test_a_store_of_this_version_without_a_column_is_refused_and_not_changed(tmp_path: Path) -> None:
    """Until the first release, the tables change and keep their version."""
    (tmp_path / "stored").mkdir(mode=0o700)
    url = stores.store_url(tmp_path / "stored")
    await (await Store.open(url)).close()
    stores.sql(tmp_path / "stored", "ALTER TABLE runs DROP COLUMN waiting_since")
    await refuses(
        tmp_path,
        url,
        r"is of an earlier Portico: it lacks runs.waiting_since: .* changed nothing. `portico store export \S+ --output FILE` .* "
        r"Then start with an empty store: ",
    )


@pytest.mark.sqlite_only
async def test_a_view_of_the_user_does_not_keep_the_store_from_opening(tmp_path: Path) -> None:
    url = stores.store_url(tmp_path)
    await (await Store.open(url)).close()
    stores.sql(tmp_path, "CREATE VIEW mine AS SELECT * FROM missing")
    await (await Store.open(url)).close()


async def test_processes_that_start_together_create_the_tables_once(tmp_path: Path) -> None:
    url = stores.store_url(tmp_path, empty=True)
    opened = await asyncio.gather(*(Store.open(url) for _ in range(4)))
    assert stores.sql(tmp_path, "SELECT version FROM store_version") == [(schema.VERSION,)]
    for n, store in enumerate(opened):
        await store.sessions.create(SessionRecord(f"s{n}", "echo"), [])
    assert stores.sql(tmp_path, "SELECT count(*) FROM sessions") == [(4,)]
    for store in opened:
        await store.close()


async def test_the_tables_are_created_completely_or_not_at_all(tmp_path: Path) -> None:
    url = stores.store_url(tmp_path, empty=True)
    with failing("INSERT INTO store_version"), pytest.raises(RuntimeError, match="the disk is gone"):
        await Store.open(url)
    assert tables(tmp_path) == []
    store = await Store.open(url)
    await store.sessions.create(SessionRecord("s", "echo"), [])
    await store.close()


@contextmanager
def failing(statement: str) -> Iterator[None]:
    """Let statements fail that begin so, with an error of no database."""

    execute = Connection.execute

    def executed(self: Connection, given: str, *parameters: Any) -> Any:
        if given.startswith(statement):
            raise RuntimeError("the disk is gone")
        return execute(self, given, *parameters)

    with patch.object(Connection, "execute", executed):
        yield
