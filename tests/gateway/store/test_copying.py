"""`portico store copy`: everything is copied, a copy that has not ended is not used, and nothing that is used is touched."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ConfigError
from gateway.store import AuditRecord, EventRow, MessageRow, RunRecord, SessionRecord, Store, copying, schema
from gateway.store.copying import copy_store
from gateway.store.database import Database
from gateway.store.schema import found_tables
from gateway.store.sql import Connection, Parameters
from gateway.store.sqlite import sqlite_url
from tests.support.daemon import gateway_config, run_gateway
from tests.support.postgresql import server
from tests.support.requests import create_session
from tests.support.stored_messages import message_bodies
from tests.support.stores import KINDS, before_commits, connected
from tests.support.waiting import wait_until

pytestmark = pytest.mark.one_store
OF_DATABASE = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
"""The locks of one database: the server is shared."""
TEXT = "NUL \0, the escape \ufdd0, ä, 東京, 🙂, %s, ' and \\"


async def fill(url: str, sessions: int = 30) -> None:
    store = await Store.open(url)
    decision = AuditRecord(1.5, "s0", "r", TEXT, "t" * 400, "c", "denied", "policy", TEXT, "{}")
    for n in range(sessions):
        name = f"{'sS_ä'[n % 4]}{n}"
        record = SessionRecord(name, "echo", {"n": n, "text": TEXT}, os.urandom(20), None, n / 3, "owner" if n % 2 else None)
        history = [MessageRow(f'"{m}"', None, f"word {m}") for m in range(20)]
        await store.sessions.create(record, history, RunRecord(f"run {n}", name, "waiting", None, 1, 2.5))
        await store.session_metadata.update(name, title=TEXT)
        for first in range(1, 9):
            await store.events.append(EventRow(name, first, first, os.urandom(1000)), [MessageRow('"m"', first)])
        await store.audit.append([decision] * 5)
    await store.close()


async def test_everything_is_copied_to_postgresql_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "SMALL_BATCH", 4000)
    monkeypatch.setattr(copying, "LARGE_BATCH", 20_000)
    (tmp_path / "back").mkdir()
    urls = [sqlite_url(tmp_path), server().url(server().create_empty_database()), sqlite_url(tmp_path / "back")]
    await fill(urls[0])
    seen: list[tuple[str, int, int]] = []
    first = await copy_store(urls[0], urls[1], lambda *progress: seen.append(progress))
    left_out = ("store_version", *schema.OF_RUNNING_NODES)
    assert [table.name for table in first] == [name for name in schema.tables() if name not in left_out]
    rows = {table.name: table.rows for table in first}
    assert rows == rows | {"audit": 150, "events": 240, "messages": 840, "session_metadata": 30}
    assert ("events", 240, 240) in seen and len([name for name, *_ in seen if name == "events"]) > 3
    statistics = "SELECT count(*) FROM pg_stats WHERE tablename IN ('messages', 'messages_words')"
    with connected(urls[1]) as copied:
        assert copied.value(statistics) > 0
    assert await copy_store(urls[1], urls[2]) == first
    found = []
    for url in urls:
        store = await Store.open(url)
        words = await store.search.find([("word 3", True)], None, everybody=True, agent=None, limit=100, before=None)
        assert words is not None and len(words) == 30
        metadata, bodies = await store.session_metadata.get("s0"), await message_bodies(store, "ä3")
        found.append((await store.sessions.page(100), metadata, bodies, words))
        # New rows get numbers of their own.
        await store.audit.append([AuditRecord(2.5, "new", "r", "a", "t", "c", "denied", "b", None, "{}")])
        assert len(await store.audit.newest(1000)) == 151
        await store.sessions.create(SessionRecord("new", "echo"), [MessageRow("{}")])
        await store.close()
    assert found[0] == found[1] == found[2]
    assert found[0][1].title == TEXT


async def test_a_copied_gateway_goes_on(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    url = server().url(server().create_empty_database())
    async with run_gateway(gateway_config(tmp_path, store={"url": sqlite_url(tmp_path / "data")})) as portico:
        session = (await create_session(portico.client, "echo", "before"))["sessionId"]
    await copy_store(sqlite_url(tmp_path / "data"), url)
    async with run_gateway(gateway_config(tmp_path, store={"url": url})) as portico:
        answer = await portico.client.post(f"/session/{session}", json={"messages": [{"role": "user", "content": "after"}]})
        assert answer.json()["stopReason"] == "end_turn"
        assert len(await message_bodies(portico.gateway.store, session)) == 4
        found = await portico.client.get("/aap/v3/search", params={"q": "before"})
        assert len(found.json()["results"]) == 2


@pytest.fixture(params=KINDS)
def store_url_of_a_copy(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database of each kind."""
    if request.param == "postgresql":
        return server().url(server().create_empty_database())
    (tmp_path / "copy").mkdir()
    return sqlite_url(tmp_path / "copy")


async def test_what_is_used_is_not_touched(tmp_path: Path) -> None:
    await fill(sqlite_url(tmp_path), 2)
    url = server().url(server().create_empty_database())
    await fill(url, 1)
    with pytest.raises(ConfigError, match=r"the target is used: its table sessions has rows"):
        await copy_store(sqlite_url(tmp_path), url)
    other = server().url(server().create_empty_database())
    async with run_gateway(gateway_config(tmp_path / "gateway", store={"url": other})):
        with pytest.raises(ConfigError, match=r"a daemon uses the database"):
            await copy_store(sqlite_url(tmp_path), other)
    store = await Store.open(url)
    assert len(await store.sessions.page(100)) == 1
    await store.close()


class Interrupted(Exception):
    """Ends a copy in its middle."""


async def test_a_source_cannot_be_written_meanwhile(tmp_path: Path) -> None:
    await fill(sqlite_url(tmp_path), 2)
    refused, locked = 0, pytest.raises(sqlite3.OperationalError, match="locked")

    def write(name: str, rows: int, total: int) -> None:
        nonlocal refused
        with closing(sqlite3.connect(tmp_path / "portico.db", isolation_level=None, timeout=0)) as connection, locked:
            connection.execute("UPDATE sessions SET agent = 'another'")
        refused += 1

    database = server().create_empty_database()
    assert await copy_store(sqlite_url(tmp_path), server().url(database), write)
    assert refused > 10
    # Afterwards it can.
    with closing(sqlite3.connect(tmp_path / "portico.db", isolation_level=None, timeout=0)) as connection:
        connection.execute("UPDATE sessions SET agent = 'another'")


async def test_a_source_that_is_used_is_refused(tmp_path: Path) -> None:
    target = server().url(server().create_empty_database())
    used = server().url(server().create_empty_database())
    async with run_gateway(gateway_config(tmp_path / "postgresql", store={"url": used})):
        message = r"a daemon uses the database postgresql://.*, or another program does, such as `portico store copy`: stop it"
        with pytest.raises(ConfigError, match=message):
            await copy_store(used, target)
    # Beside no data directory, whose lock would show the daemon.
    (tmp_path / "elsewhere").mkdir()
    elsewhere = sqlite_url(tmp_path / "elsewhere")
    async with run_gateway(gateway_config(tmp_path / "sqlite", store={"url": elsewhere})):
        with pytest.raises(ConfigError, match=r"a daemon uses the database /.*, or another program does"):
            await copy_store(elsewhere, target)
    for url in (used, elsewhere):
        with pytest.raises(ConfigError, match="is the source and the target"):
            await copy_store(url, url)
    assert await copy_store(used, target)


async def test_a_database_under_two_names_is_refused_at_once(tmp_path: Path) -> None:
    await fill(sqlite_url(tmp_path), 1)
    (tmp_path / "link.db").symlink_to(tmp_path / "portico.db")
    with pytest.raises(ConfigError, match="is the source and the target"):
        await copy_store(sqlite_url(tmp_path), f"sqlite:///{tmp_path}/link.db")
    database = server().create_database()
    # Less than the wait for the lock of a daemon.
    async with asyncio.timeout(9):
        with pytest.raises(ConfigError, match=rf"a daemon uses the database postgresql://.*/{database}, or another program does"):
            await copy_store(server().url(database), server().tcp_url(database))


async def test_a_file_that_a_daemon_uses_is_no_target(tmp_path: Path) -> None:
    source = server().url(server().create_empty_database())
    await fill(source, 1)
    (tmp_path / "elsewhere").mkdir()
    target = sqlite_url(tmp_path / "elsewhere")
    async with run_gateway(gateway_config(tmp_path, store={"url": target})) as portico:
        with pytest.raises(ConfigError, match=r"a daemon uses the database /.*, or another program does"):
            await copy_store(source, target)
        assert (await portico.client.get("/aap/v3/sessions")).json()["sessions"] == []
        await create_session(portico.client, "echo")
    with pytest.raises(ConfigError, match="the target is used"):
        await copy_store(source, target)


async def test_nobody_uses_a_file_while_it_is_copied_to(tmp_path: Path) -> None:
    source = server().url(server().create_empty_database())
    await fill(source, 1)
    refused, locked = 0, pytest.raises(sqlite3.OperationalError, match="locked")

    def use(name: str, rows: int, total: int) -> None:
        nonlocal refused
        with closing(sqlite3.connect(tmp_path / "portico.db", timeout=0)) as connection, locked:
            connection.execute("SELECT version FROM store_version")
        refused += 1

    assert await copy_store(source, sqlite_url(tmp_path), use)
    assert refused > 10
    await (await Store.open(sqlite_url(tmp_path))).close()


async def test_a_lock_of_the_source_that_is_lost_is_noticed(tmp_path: Path) -> None:
    database = server().create_empty_database()
    await fill(server().url(database), 1)

    def cut(name: str, rows: int, total: int) -> None:
        if name == "messages" and rows == total:
            locking = f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND {OF_DATABASE}"
            assert server().execute(f"SELECT pg_terminate_backend(pid) FROM ({locking}) AS found", database) == [(True,)]

    with pytest.raises(ConfigError, match=rf"kept daemons away from the database postgresql://.*/{database}.* was lost"):
        await copy_store(server().url(database), sqlite_url(tmp_path), cut)
    with pytest.raises(ConfigError, match="has not ended"):
        await Store.open(sqlite_url(tmp_path))


async def test_settings_of_a_database_that_a_copy_depends_on(tmp_path: Path) -> None:
    await fill(sqlite_url(tmp_path), 2)
    database = server().create_empty_database()
    for setting in ("idle_session_timeout = '1h'", "extra_float_digits = 0"):
        server().execute(f"ALTER DATABASE {database} SET {setting}")
    assert await copy_store(sqlite_url(tmp_path), server().url(database))
    store = await Database.open(server().url(database))
    timeout = await store.read(lambda connection: connection.value("SHOW idle_session_timeout"))
    await store.close()
    # The connection that has the lock may send nothing for hours.
    assert timeout == "0"


async def test_a_database_in_memory_is_refused(tmp_path: Path) -> None:
    await fill(sqlite_url(tmp_path), 1)
    for urls in ((sqlite_url(tmp_path), "sqlite://"), ("sqlite:///:memory:", sqlite_url(tmp_path))):
        with pytest.raises(ConfigError, match=r"is no file: give the path of one"):
            await copy_store(*urls)


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


async def test_a_source_that_does_not_exist_is_not_created(tmp_path: Path) -> None:
    (tmp_path / "empty.db").write_bytes(b"")
    for name in ("portco.db", "empty.db"):
        with pytest.raises(ConfigError, match=rf"there is no database in /.*/{name}: check the path"):
            await copy_store(f"sqlite:///{tmp_path}/{name}", server().url(server().create_empty_database()))
    assert files(tmp_path) == {"empty.db": b""}


OF_ANOTHER_PROGRAM = {
    "a table": ["CREATE TABLE events (id integer)"],
    "a view": ["CREATE TABLE other (id integer)", "CREATE VIEW session_metadata AS SELECT id FROM other"],
}


@pytest.mark.parametrize("what", OF_ANOTHER_PROGRAM)
async def test_a_database_of_another_program_is_left_as_it_is(tmp_path: Path, store_url_of_a_copy: str, what: str) -> None:
    await fill(sqlite_url(tmp_path), 1)
    with connected(store_url_of_a_copy) as connection:
        for statement in OF_ANOTHER_PROGRAM[what]:
            connection.execute(statement)
        before = found_tables(connection)
    for open_it in (partial(copy_store, sqlite_url(tmp_path)), Store.open):
        message = r"has a table (events|session_metadata) of another program: use an empty database"
        with pytest.raises(ConfigError, match=message):
            await open_it(store_url_of_a_copy)
        with connected(store_url_of_a_copy) as connection:
            assert found_tables(connection) == before


async def test_an_error_names_the_database_that_has_it(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path)
    await fill(url, 6)
    database = server().create_empty_database()
    assert await copy_store(url, server().url(database))
    (tmp_path / "copy").mkdir()

    def cut(name: str, rows: int, total: int) -> None:
        server().cut_connections(database)

    with pytest.raises(ConfigError, match=rf"the database postgresql://postgres@/{database}.* cannot be used"):
        await copy_store(server().url(database), sqlite_url(tmp_path / "copy"), cut)
    with closing(sqlite3.connect(tmp_path / "portico.db")) as connection:
        [(size,)] = connection.execute("PRAGMA page_size")
        [(page,)] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'events'")
    with (tmp_path / "portico.db").open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    with pytest.raises(ConfigError, match=r"the database /.*/portico\.db cannot be used \(.* malformed\): restore a backup"):
        await copy_store(url, server().url(server().create_empty_database()))


REFUSED_ROWS = {
    "a row that refers to none": (
        "INSERT INTO messages VALUES (1, 'nothing', 0, 'secret text', NULL, '')",
        r'messages .*\(insert or update on table "messages" violates foreign key constraint "\w+"\)',
    ),
    "a value of another type": ("UPDATE messages SET seq = 'secret text'", r"messages .*\(InvalidTextRepresentation\)"),
}


async def test_rows_that_the_target_refuses(tmp_path: Path) -> None:
    await fill(sqlite_url(tmp_path), 1)
    for statement, message in REFUSED_ROWS.values():
        with closing(sqlite3.connect(tmp_path / "portico.db", isolation_level=None)) as connection:
            connection.execute("DELETE FROM messages WHERE session_id = 'nothing'")
            connection.execute(statement)
        with pytest.raises(ConfigError, match=message + ": the target cannot store what they have") as refused:
            await copy_store(sqlite_url(tmp_path), server().url(server().create_empty_database()))
        assert "secret text" not in str(refused.value)


async def test_a_number_that_sqlite_does_not_store(tmp_path: Path) -> None:
    database = server().create_database()
    server().execute("INSERT INTO session_usage VALUES ('s', 1, 1, 1, 1, 1, 'NaN')", database)
    with pytest.raises(ConfigError, match=r"\(NOT NULL constraint failed: session_usage\.cost_usd\): the target cannot"):
        await copy_store(server().url(database), sqlite_url(tmp_path))


async def test_rows_that_another_program_deletes_are_noticed(tmp_path: Path) -> None:
    database = server().create_empty_database()
    await fill(server().url(database), 1)

    def another_program(name: str, rows: int, total: int) -> None:
        if name == "audit" and rows == total:
            server().execute("DELETE FROM audit WHERE id = 1", database)

    with pytest.raises(ConfigError, match=r"the table audit of the copy has 5 rows, that of the source 4: another program"):
        await copy_store(server().url(database), sqlite_url(tmp_path), another_program)
    with pytest.raises(ConfigError, match="has not ended"):
        await Store.open(sqlite_url(tmp_path))


async def test_the_end_of_a_copy_is_one_transaction(tmp_path: Path, store_url_of_a_copy: str) -> None:
    await fill(sqlite_url(tmp_path), 2)
    versions = list[int]()

    def kill_at_the_end(connection: Connection) -> None:
        versions.append(connection.value("SELECT version FROM store_version"))
        if versions[-1] == schema.VERSION and schema.UNFINISHED_COPY in versions:
            raise Interrupted

    with before_commits(kill_at_the_end), pytest.raises(Interrupted):
        await copy_store(sqlite_url(tmp_path), store_url_of_a_copy)
    for use in (Store.open, partial(copy_store, sqlite_url(tmp_path))):
        with pytest.raises(ConfigError, match=r"a copy of another store to \S+ has not ended: copy it again"):
            await use(store_url_of_a_copy)


async def test_a_daemon_that_waits_for_a_copy_does_not_start_with_a_part_of_it(tmp_path: Path) -> None:
    await fill(sqlite_url(tmp_path), 6)
    database = server().create_database()
    url = server().url(database)
    waiting = f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND {OF_DATABASE}"
    copy = await Database.open_for_copy(url)
    # It finds a database without rows, and waits for the lock.
    daemon = asyncio.create_task(Store.open_alone(url))
    await wait_until(lambda: server().execute(waiting, database))
    begin = "UPDATE store_version SET version = :version"
    await copy.write(lambda connection: connection.execute(begin, {"version": schema.UNFINISHED_COPY}))
    await copy.close()
    with pytest.raises(ConfigError, match="has not ended"):
        await daemon


async def test_another_encoding_is_refused() -> None:
    server().execute("CREATE DATABASE latin1 ENCODING 'LATIN1' TEMPLATE template0")
    server().databases.add("latin1")
    with pytest.raises(ConfigError, match=r"latin1 has the encoding LATIN1: create one .*--encoding=UTF8"):
        await Store.open(server().url("latin1"))


async def test_the_encoding_of_the_environment_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    database = server().create_database()
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    await fill(server().url(database), 1)
    monkeypatch.delenv("PGCLIENTENCODING")
    assert server().execute("SELECT substr(title, position('ä' IN title), 5) FROM session_metadata", database) == [("ä, 東京",)]


@pytest.mark.parametrize("kind", KINDS)
async def test_few_large_rows_are_in_memory_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(copying, "LARGE_BATCH", 100_000)
    urls = [sqlite_url(tmp_path), server().url(server().create_empty_database())]
    source, target = urls if kind == "sqlite" else reversed(urls)
    store = await Store.open(source)
    await store.sessions.create(SessionRecord("s", "echo", {}, None, None, 1.0), [], None)
    for n in range(1, 401):
        await store.events.append(EventRow("s", n, n, os.urandom(100 if n < 200 else 50_000)))
    await store.close()
    sizes, received = list[int](), list[int]()
    execute, execute_many = Connection.execute, Connection.execute_many

    def inserted(self: Connection, statement: str, rows: Iterable[Parameters]) -> None:
        rows = list(rows)
        sizes.append(sum(len(value) for row in rows for value in row.values() if isinstance(value, str | bytes)))
        execute_many(self, statement, rows)

    def executed(self: Connection, *given: Any) -> Any:
        cursor: Any = execute(self, *given)
        # psycopg has received the whole result by now.
        if self.dialect == "postgresql" and (found := cursor.pgresult) is not None:
            values = (found.get_value(row, column) for row in range(found.ntuples) for column in range(found.nfields))
            received.append(sum(len(value or b"") for value in values))
        return cursor

    monkeypatch.setattr(Connection, "execute_many", inserted)
    monkeypatch.setattr(Connection, "execute", executed)
    assert await copy_store(source, target)
    assert max(sizes) < 200_000
    if kind == "postgresql":
        # Each byte is two characters in a result.
        assert 100_000 < max(received) < 400_000


async def test_a_password_is_not_taken_from_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gateway", "store", "copy", sqlite_url(tmp_path), "postgresql://me:secret-word@localhost/x"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, err = await process.communicate()
    assert process.returncode == 1 and b"PGPASSWORD" in err and b"secret-word" not in err
