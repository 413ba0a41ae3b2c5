"""Migrations from every older version: atomic, and complete also where an older gateway left one half done.

`old_databases/version_N.sql` is a database as the gateway of version N created it.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from gateway.store import RunRecord, SessionRecord, Store, schema
from gateway.store.migrations import COMPATIBLE_FROM
from gateway.store.sqlite import sqlite_url
from tests.gateway.stored_messages import message_bodies

pytestmark = pytest.mark.sqlite_only
OLD = Path(__file__).parent / "old_databases"
NEWEST = schema.VERSION - 1
VERSIONS = [pytest.param(one, marks=pytest.mark.long if 1 < one < NEWEST else ()) for one in range(1, schema.VERSION)]
"""Older versions. The first has all steps, so that `make test` needs only that and the newest."""
OF_POSTGRESQL = {"sessions_owner"}
"""Indexes that stores on SQLite do not have."""
Statement = tuple[str, Any]


def create_old(folder: Path, version: int) -> None:
    """Create the database of an older version."""
    folder.mkdir(exist_ok=True)
    with closing(sqlite3.connect(folder / "portico.db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript((OLD / f"version_{version}.sql").read_text())


@contextmanager
def before_statements(call: Callable[[str, Any], None]) -> Iterator[None]:
    """Call a function before each statement that any engine executes, with its parameters."""

    def listener(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        call(statement, parameters)

    event.listen(Engine, "before_cursor_execute", listener)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", listener)


def content(folder: Path) -> dict[str, Any]:
    """Return the tables of a database: their columns, indexes and rows."""
    with closing(sqlite3.connect(folder / "portico.db")) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {name: sorted(row[1:3] for row in connection.execute(f"PRAGMA table_info({name})")) for name in names}
        indexes = {name: sorted(row[1] for row in connection.execute(f"PRAGMA index_list({name})")) for name in names}
        rows = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}
        return {name: (columns[name], indexes[name], rows[name]) for name in names}


async def check_migrated(folder: Path, times: int = 2) -> None:
    """Open a database, and check that everything from its older version is there, in the tables of today."""
    for _ in range(times):
        store = await Store.open(sqlite_url(folder))
        session = await store.sessions.get("sess_a")
        assert session is not None
        assert (session.agent, session.native_id, session.config) == ("echo", "native", {"options": {}})
        assert len(await message_bodies(store, "sess_a")) == 3
        assert {row.seq for row in await store.messages.rows("sess_a")} == {-1}, "recovery numbers those of unfinished runs"
        assert [run.id for run in await store.runs.unfinished()] == ["run_1", "run_2"]
        [waiting] = [run for run in await store.runs.unfinished() if run.state == "waiting"]
        assert waiting.waiting_since is not None and waiting.waiting_since <= time.time()
        assert await store.events.last_seq("sess_a") == 3
        assert await store.audit.newest(1) == []
        await store.close()
    found = content(folder)
    assert set(found) == set(schema.metadata.tables)
    for name, table in schema.metadata.tables.items():
        columns, indexes, _ = found[name]
        assert {column for column, _ in columns} == set(table.columns.keys())
        here = {index.name for index in table.indexes if index.name not in OF_POSTGRESQL}
        assert here <= set(indexes)
    assert found["schema_version"][2] == [(schema.VERSION, COMPATIBLE_FROM)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_kill_between_any_two_statements_of_a_migration(tmp_path: Path, version: int) -> None:
    """The files as they are at each statement are what a killed gateway leaves."""
    create_old(tmp_path / "old", version)
    before = content(tmp_path / "old")
    states: dict[bytes, Path] = {}
    statements: list[str] = []

    def copy(statement: str, _: Any) -> None:
        statements.append(statement)
        files = sorted((tmp_path / "old").iterdir())
        state = b"".join(file.read_bytes() for file in files if not file.name.endswith("-shm"))
        if state not in states:
            states[state] = folder = tmp_path / f"killed {len(states)}"
            shutil.copytree(tmp_path / "old", folder)

    with before_statements(copy):
        await check_migrated(tmp_path / "old")
    assert any(statement.strip().startswith(("ALTER", "CREATE")) for statement in statements)
    found = []
    for folder in states.values():
        found.append(content(folder))
        await check_migrated(folder)
    # A migration is stored completely or not at all.
    assert all(state == before or state["schema_version"][2] == [(schema.VERSION, COMPATIBLE_FROM)] for state in found)


@pytest.mark.parametrize("version", VERSIONS)
async def test_failure_of_any_statement_of_a_migration_changes_nothing(tmp_path: Path, version: int) -> None:
    create_old(tmp_path / "whole", version)
    statements: list[str] = []
    with before_statements(lambda statement, _: statements.append(statement)):
        await (await Store.open(sqlite_url(tmp_path / "whole"))).close()
    # The migration is stored by then.
    statements = [statement for statement in statements if not statement.startswith("PRAGMA wal_checkpoint")]
    create_old(tmp_path, version)
    before = content(tmp_path)
    countdown = 0

    def fail(statement: str, _: Any) -> None:
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            raise RuntimeError(statement)

    reads = [statement.startswith(("SELECT", "PRAGMA")) for statement in statements]
    assert sum(reads) > 10 and not all(reads)
    for number in range(len(statements)):
        # Version 1 executes all steps. In those after it the second of two reads would fail in the same state as the first.
        if version > 1 and number and reads[number - 1] and reads[number]:
            continue
        countdown = number + 1
        with before_statements(fail), pytest.raises(RuntimeError):
            await Store.open(sqlite_url(tmp_path))
        assert content(tmp_path) == before
    await check_migrated(tmp_path)


@pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.long), NEWEST])
async def test_half_done_migration_of_an_older_gateway_is_completed(tmp_path: Path, version: int) -> None:
    """Up to version 4 each statement was stored by itself."""
    create_old(tmp_path / "whole", version)
    changes: list[Statement] = []

    def record(statement: str, parameters: Any) -> None:
        if not statement.strip().startswith(("SELECT", "PRAGMA", "BEGIN")):
            changes.append((statement, parameters))

    with before_statements(record):
        await (await Store.open(sqlite_url(tmp_path / "whole"))).close()
    *changes, (last, _) = changes
    assert last.startswith("UPDATE schema_version")
    for count in range(1, len(changes) + 1):
        folder = tmp_path / str(count)
        create_old(folder, version)
        with closing(sqlite3.connect(folder / "portico.db", isolation_level=None)) as connection:
            for statement, parameters in changes[:count]:
                connection.execute(statement, parameters)
        await check_migrated(folder, times=1)


async def test_kill_while_a_database_is_created(tmp_path: Path) -> None:
    states: set[bytes] = set()
    (tmp_path / "new").mkdir()

    def copy(_statement: str, _: Any) -> None:
        state = b"".join(file.read_bytes() for file in sorted((tmp_path / "new").iterdir()) if not file.name.endswith("-shm"))
        if state not in states:
            states.add(state)
            shutil.copytree(tmp_path / "new", tmp_path / f"killed {len(states)}")

    with before_statements(copy):
        await (await Store.open(sqlite_url(tmp_path / "new"))).close()
    for number in range(1, len(states) + 1):
        store = await Store.open(sqlite_url(tmp_path / f"killed {number}"))
        await store.sessions.create(SessionRecord("s", "echo"), [], RunRecord("r", "s", "running", None, 1))
        assert [run.id for run in await store.runs.unfinished()] == ["r"]
        await store.close()
    assert set(content(tmp_path / "killed 1")) == set(schema.metadata.tables)


def test_old_databases_are_of_their_versions() -> None:
    assert {file.name for file in OLD.iterdir()} == {f"version_{version}.sql" for version in range(1, schema.VERSION)}
    for version in range(1, schema.VERSION):
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.executescript((OLD / f"version_{version}.sql").read_text())
            assert connection.execute("SELECT version FROM schema_version").fetchone() == (version,)
