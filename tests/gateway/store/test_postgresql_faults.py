"""A PostgreSQL server that is restarted, cut off, absent or wrong: no write is lost that has returned, and none is stored
twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from gateway.errors import ConfigError, StoreUnavailable
from gateway.installation import command_for_extra
from gateway.store import EventRow, IntegrityError, MessageRow, SessionRecord, Store, transactions
from gateway.store.database import Database
from gateway.store.postgresql_connection import Question
from gateway.store.sql import Connection
from gateway.store.times import StoreTimes
from tests.support.daemon import gateway_config, run_gateway
from tests.support.postgresql import PASSWORD, PostgresqlServer, server, start_own_server
from tests.support.postgresql_proxy import Proxy
from tests.support.requests import create_session, session_body
from tests.support.stored_messages import message_bodies
from tests.support.waiting import wait_until

pytestmark = pytest.mark.one_store
TIMES = StoreTimes(read=0.1, conflict_pause=0.001, answer=0.3, resolve=0.05, resolve_pause=0.01)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    found = Proxy(server().port)
    yield found
    found.close()


@pytest.fixture
async def proxied(proxy: Proxy) -> AsyncIterator[Database]:
    # The least that psycopg takes.
    url = f"{server().tcp_url(server().create_database(), port=proxy.port)}?connect_timeout=2"
    found = await Database.open(url, times=TIMES)
    yield found
    await found.close()


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresqlServer]:
    """A server that tests may stop."""
    found = start_own_server()
    yield found
    found.close()


def insert_process(connection: Connection, marker: str) -> str:
    connection.execute("INSERT INTO processes VALUES (:marker, 1, 0.0)", {"marker": marker})
    return marker


def markers(connection: Connection) -> list[str]:
    return sorted(connection.values("SELECT marker FROM processes"))


@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_a_commit_without_an_answer_is_stored_once(proxied: Database, proxy: Proxy, lost: str) -> None:
    assert await proxied.write(lambda connection: insert_process(connection, "before")) == "before"
    executed = 0

    def write(connection: Connection) -> int:
        nonlocal executed
        executed += 1
        # Not a key: a second execution would be stored.
        connection.execute("INSERT INTO audit SELECT 9 + count(*), 1, 's', 'r', 'a', 't', 'c', 'o', 'b', 'r', '{}' FROM audit")
        return executed

    proxy.lose = [lost]
    result = await proxied.write(write)
    assert proxy.lost == 1
    assert executed == result == (2 if lost == "request" else 1)
    assert await proxied.read(lambda connection: connection.value("SELECT count(*) FROM audit")) == 1
    assert await proxied.write(lambda connection: insert_process(connection, "z")) == "z"


async def test_a_commit_that_the_server_reads_late_is_stored_once(proxied: Database, proxy: Proxy) -> None:
    await proxied.write(lambda connection: connection.execute("CREATE TABLE counter AS SELECT 0 AS n"))

    def write(connection: Connection) -> None:
        connection.execute("UPDATE counter SET n = n + 1")

    def is_connected(connection: Connection) -> bool:
        return bool(connection.value(f"SELECT count(*) FROM pg_stat_activity WHERE pid = {lost}"))

    await proxied.write(write)
    lost = await proxied.write(lambda connection: connection.value("SELECT pg_backend_pid()"))
    proxy.lose = ["late"]
    await proxied.write(write)
    assert proxy.lost == 1 and await proxied.read(is_connected)
    proxy.forward_late()
    # The server ends that connection when it has done what was sent.
    deadline = asyncio.get_running_loop().time() + 30
    while await proxied.read(is_connected):
        assert asyncio.get_running_loop().time() < deadline
    assert await proxied.read(lambda connection: connection.value("SELECT n FROM counter")) == 2
    await proxied.write(write)
    assert await proxied.read(lambda connection: connection.value("SELECT n FROM counter")) == 3


async def test_the_answers_of_two_commits_in_a_row_are_lost(proxied: Database, proxy: Proxy) -> None:
    await proxied.write(lambda connection: insert_process(connection, "0"))
    proxy.lose = ["request", "answer"]
    assert await proxied.write(lambda connection: insert_process(connection, "a")) == "a"
    proxy.lose = ["request", "request"]
    with pytest.raises(StoreUnavailable):
        await proxied.write(lambda connection: insert_process(connection, "not stored"))
    # What was found out about a commit is not taken for the outcome of a later one.
    proxy.lose = ["request"]
    assert await proxied.write(lambda connection: insert_process(connection, "b")) == "b"
    assert proxy.lose == [] and proxy.lost == 5
    assert await proxied.read(markers) == ["0", "a", "b"]


async def test_a_group_of_writes_whose_answer_was_lost_is_stored_once(proxied: Database, proxy: Proxy) -> None:
    await proxied.write(lambda connection: insert_process(connection, "0"))
    proxy.lose = ["answer"]
    writes = [proxied.write(lambda connection, n=n: insert_process(connection, f"m{n}")) for n in range(30)]  # type: ignore[misc]
    assert await asyncio.gather(*writes) == [f"m{n}" for n in range(30)]
    assert proxy.lost == 1
    assert len(await proxied.read(markers)) == 31


@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_writes_wait_until_it_is_known_whether_they_are_stored(proxied: Database, proxy: Proxy, lost: str) -> None:
    await proxied.write(lambda connection: insert_process(connection, "0"))
    proxy.lose, proxy.leaves, proxy.marker = [lost], True, b"m1"
    writes = [asyncio.create_task(proxied.write(lambda connection, n=n: insert_process(connection, f"m{n}"))) for n in range(3)]  # type: ignore[misc]
    await wait_until(lambda: proxied.in_doubt)
    with pytest.raises(StoreUnavailable):
        await proxied.write(lambda connection: insert_process(connection, "meanwhile"))
    assert not writes[1].done()
    proxy.come_back()
    ends = await asyncio.gather(*writes, return_exceptions=True)
    stored = [f"m{n}" for n, end in enumerate(ends) if end == f"m{n}"]
    assert ("m1" in stored) is (lost == "answer") and all(isinstance(end, str | StoreUnavailable) for end in ends)
    assert await proxied.read(markers) == ["0", *stored]
    assert not proxied.in_doubt and await proxied.write(lambda connection: insert_process(connection, "z")) == "z"


REFUSE_TO_SAY = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN IF NEW.last_commit % 2 = 1 THEN RAISE EXCEPTION 'not told'; END IF; RETURN NEW; END $$",
    "CREATE TRIGGER refuse BEFORE INSERT ON store_writers FOR EACH ROW EXECUTE FUNCTION refuse()",
)
"""The server executes writes, and only the question for the outcome of a commit fails: its number is odd."""


async def test_nothing_is_written_before_it_is_known_whether_the_write_before_is_stored(proxy: Proxy) -> None:
    name = server().create_database()
    database = await Database.open(server().tcp_url(name, port=proxy.port), times=TIMES)
    await database.write(lambda connection: insert_process(connection, "0"))
    for statement in REFUSE_TO_SAY:
        server().execute(statement, name)
    proxy.lose = ["answer"]
    write = asyncio.create_task(database.write(lambda connection: insert_process(connection, "doubt")))
    await wait_until(lambda: database.in_doubt)
    # The server could execute them, most of them together.
    writes = [database.write(lambda connection, n=n: insert_process(connection, f"m{n}")) for n in range(20)]  # type: ignore[misc]
    ends = await asyncio.gather(*writes, return_exceptions=True)
    assert all(isinstance(end, StoreUnavailable | psycopg.errors.RaiseException) for end in ends), ends
    server().execute("DROP TRIGGER refuse ON store_writers", name)
    assert await write == "doubt"
    assert await database.read(markers) == ["0", "doubt"]
    await database.close()


async def test_a_write_is_repeated_if_the_server_ends_its_connection_for_another_reason(proxied: Database) -> None:
    executed = 0

    def write(connection: Connection) -> int:
        nonlocal executed
        executed += 1
        insert_process(connection, "once")
        if executed == 1:
            connection.execute("SET LOCAL transaction_timeout = '20ms'")
            connection.value("SELECT pg_sleep(10)")
        return executed

    assert await proxied.write(write) == 2
    assert await proxied.read(markers) == ["once"]


async def test_reads_and_writes_go_on_after_the_connections_were_cut() -> None:
    name = server().create_database()
    database = await Database.open(server().url(name))
    try:
        await database.write(lambda connection: insert_process(connection, "a"))
        assert await database.read(markers) == ["a"]
        for marker in ("b", "c"):
            assert server().cut_connections(name) >= 1
            assert await database.write(lambda connection, marker=marker: insert_process(connection, marker)) == marker  # type: ignore[misc]
            assert server().cut_connections(name) >= 1
            assert marker in await database.read(markers)
    finally:
        await database.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
async def test_writes_during_a_restart_of_the_server_are_stored_once(own_server: PostgresqlServer, how: signal.Signals) -> None:
    store = await Store.open(own_server.url(own_server.create_empty_database()))
    stop, stored, failed = asyncio.Event(), list[str](), list[str]()
    try:
        await store.sessions.create(SessionRecord("s", "echo"), [])

        async def write(writer: int) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                body = f'"{writer}.{number}"'
                try:
                    await store.messages.append("s", [MessageRow(body)])
                    stored.append(body)
                except StoreUnavailable:
                    failed.append(body)
                    await asyncio.sleep(0.02)

        writers = [asyncio.create_task(write(writer)) for writer in range(4)]
        await wait_until(lambda: len(stored) > 40)
        await asyncio.to_thread(own_server.restart, how)
        before = len(stored)
        await wait_until(lambda: len(stored) > before + 40)
        stop.set()
        await asyncio.gather(*writers)
        found = await message_bodies(store, "s")
    finally:
        await store.close()
    assert len(found) == len(set(found)), "no message is stored twice"
    assert set(stored) <= set(found) <= {*stored, *failed}


async def test_a_server_that_is_away_makes_the_store_unavailable_until_it_is_back(own_server: PostgresqlServer) -> None:
    database = await Database.open(own_server.url(own_server.create_empty_database()), times=TIMES)
    try:
        await database.write(lambda connection: insert_process(connection, "before"))
        await database.read(markers)
        await asyncio.to_thread(own_server.stop)
        with pytest.raises(StoreUnavailable, match="the store cannot be written"):
            await database.write(lambda connection: insert_process(connection, "away"))
        with pytest.raises(StoreUnavailable, match="the store cannot be read"):
            await database.read(markers)
        await asyncio.to_thread(own_server.start)
        await database.write(lambda connection: insert_process(connection, "after"))
        assert await database.read(markers) == ["after", "before"]
    finally:
        await database.close()


async def test_a_run_survives_a_restart_of_the_server(own_server: PostgresqlServer, tmp_path: Path) -> None:
    url = own_server.url(own_server.create_empty_database())
    config = gateway_config(tmp_path, store={"url": url})
    turn = [{"text": "one"}, {"wait_for_file": "go"}, *[{"text": f" {n}"} for n in range(50)]]
    (tmp_path / "scenes" / "long.json").write_text(json.dumps({"turns": [{"steps": turn}]}))
    async with run_gateway(config) as portico:
        body = session_body("script", "go", options={"scenario": "long.json"}, stream="delta")
        async with portico.client.stream("PUT", "/session", json=body) as answer:
            received = ""
            async for chunk in answer.aiter_text():
                received += chunk
                if '"one"' in received and not (tmp_path / "scenes" / "go").exists():
                    await asyncio.to_thread(own_server.restart, signal.SIGKILL)
                    (tmp_path / "scenes" / "go").touch()
        assert '"stopReason":"end_turn"' in received
        session = received.split('"sessionId":"', 1)[1].split('"', 1)[0]
        rows = await portico.gateway.store.events.read(session, 0)
        numbers = [number for first, data in rows for number, _ in enumerate(data.split(b"\n"), first)]
        assert numbers == list(range(1, numbers[-1] + 1))
        history = await message_bodies(portico.gateway.store, session)
        assert "one 0 1 2" in history[-1] and len(history) == 2
        assert (await create_session(portico.client, "echo", "next"))["stopReason"] == "end_turn"


UNUSABLE: dict[str, tuple[Callable[[PostgresqlServer], str], str]] = {
    "unknown database": (lambda found: found.tcp_url("none"), r"none.*createdb"),
    "no server": (lambda found: found.tcp_url("postgres", port=1), r"check that the server runs, its address and its port"),
    "a port with 28": (
        lambda found: found.tcp_url("postgres", port=2805),
        r"check that the server runs, its address and its port",
    ),
    "wrong password": (
        lambda found: found.tcp_url("postgres", user="portico", password="wrong-secret"),
        r"password.*PGPASSWORD",
    ),
    "no password": (lambda found: found.tcp_url("postgres", user="portico"), r"password.*PGPASSWORD"),
    "a parameter": (lambda found: f"{found.tcp_url('none', user='portico')}?password=wrong-secret", r"password.*PGPASSWORD"),
    "password of a key": (lambda found: f"{found.tcp_url('none')}?sslpassword=wrong-secret", r"none.*createdb"),
    "an @": (lambda found: "postgresql://portico:my@wrong-secret@127.0.0.1/db", r"more than one @.*%40"),
    "no TLS": (lambda found: f"{found.tcp_url('postgres')}?sslmode=require", r"does not support SSL.*leave out sslmode"),
    "a wrong parameter": (lambda found: f"{found.tcp_url('postgres')}?sslmode=perhaps", r"check the parameters in the URL"),
    "no url": (lambda found: "postgresql://portico:wrong-secret@host:port/db", r"no URL of a database"),
    "another database": (lambda found: "mysql://portico:wrong-secret@localhost/db", r"no store for mysql.*postgresql://"),
}


async def test_a_database_that_cannot_be_opened_is_explained_without_the_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name, (url, told) in UNUSABLE.items():
        with pytest.raises(ConfigError) as failure:
            await Store.open(url(server()))
        assert re.search(told, str(failure.value)), (name, failure.value)
        assert "wrong-secret" not in f"{failure.value} {caplog.text}", name
        assert "\n" not in str(failure.value), name


async def test_the_password_comes_from_the_url_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    name = server().create_database()
    server().execute("GRANT ALL ON SCHEMA public TO portico", name)
    server().execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO portico", name)
    await (await Store.open(server().tcp_url(name, user="portico", password=PASSWORD))).close()
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    await (await Store.open(server().tcp_url(name, user="portico"))).close()


async def test_rights_that_are_missing_are_explained() -> None:
    name = server().create_empty_database()
    with pytest.raises(ConfigError, match=r"GRANT CREATE ON SCHEMA public"):
        await Store.open(server().tcp_url(name, user="portico", password=PASSWORD))


async def test_writers_that_ended_long_ago_are_forgotten() -> None:
    name = server().create_database()
    server().execute("INSERT INTO store_writers VALUES ('old', 2, now() - interval '31 days'), ('new', 2, now())", name)
    database = await Database.open_alone(server().url(name))
    try:
        await database.write(lambda connection: insert_process(connection, "one"))
        found = {writer for (writer,) in server().execute("SELECT id FROM store_writers", name)}
        assert "new" in found and "old" not in found
    finally:
        await database.close()


async def test_gateways_that_start_together_create_the_tables_once() -> None:
    url = server().url(server().create_empty_database())
    stores = await asyncio.gather(*(Store.open(url) for _ in range(4)))
    for store in stores:
        await store.events.append(EventRow(f"log {id(store)}", 1, 1, b"{}"))
        await store.close()


async def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gateway.store.postgresql")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match="needs psycopg") as refused:
        await Store.open("postgresql://localhost/portico")
    assert str(refused.value).endswith(f"Run: {command_for_extra('postgresql')}")


async def test_a_write_that_the_server_ends_for_the_sake_of_another_is_executed_again() -> None:
    name = server().create_database()
    database = await Database.open(server().url(name))
    await database.write(lambda connection: [insert_process(connection, marker) for marker in ("one", "two")])
    executed, waits = 0, threading.Event()
    holds = threading.Event()

    def lock(marker: str) -> str:
        return f"UPDATE processes SET pid = pid + 1 WHERE marker = '{marker}'"

    def other() -> None:
        with psycopg.connect(server().connection_parameters(name)) as connection:
            # The server ends the one that notices it first.
            connection.execute("SET deadlock_timeout = '60s'")
            connection.execute(lock("two"))
            holds.set()
            assert waits.wait(20)
            connection.execute(lock("one"))

    def write(connection: Connection) -> int:
        nonlocal executed
        executed += 1
        connection.changed(lock("one"))
        waits.set()
        connection.execute(lock("two"))
        return executed

    thread = threading.Thread(target=other)
    thread.start()
    await asyncio.get_running_loop().run_in_executor(None, holds.wait, 20)
    assert await asyncio.wait_for(database.write(write), 30) == 2
    thread.join()
    assert server().execute("SELECT pid FROM processes", name) == [(3,), (3,)]
    await database.close()


async def test_a_write_that_is_always_in_the_way_of_others_is_refused() -> None:
    database = await Database.open(server().url(server().create_database()), times=TIMES)
    executed = 0

    def write(connection: Connection) -> None:
        nonlocal executed
        executed += 1
        insert_process(connection, f"try {executed}")
        raise_error = "DO $$ BEGIN RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001'; END $$"
        connection.execute(raise_error)

    with pytest.raises(StoreUnavailable, match="could not serialize"):
        await database.write(write)
    assert executed == transactions.CONFLICTS and await database.read(markers) == []
    await database.close()


def process_of(connection: Connection) -> object:
    return connection.value("SELECT pg_backend_pid()")


async def test_a_write_that_fails_does_not_take_the_lock_of_the_daemon_to_another_connection() -> None:
    for opened in (Database.open_alone, Database.open_as_node):
        database = await opened(server().url(server().create_database()))
        before = await database.write(process_of)
        for failing in ("SELECT 1 / 0", "no statement", "INSERT INTO store_version VALUES (NULL)"):
            with pytest.raises((psycopg.Error, IntegrityError)):
                await database.write(lambda connection, failing=failing: connection.execute(failing))  # type: ignore[misc]
            # It would wait for the lock of its own connection.
            assert await database.write(process_of) == before
        await database.close()


@pytest.mark.parametrize("lost", [pytest.param("request", marks=pytest.mark.long), "answer"])
async def test_a_server_that_accepts_all_and_answers_nothing_blocks_nobody_for_ever(
    proxied: Database, proxy: Proxy, lost: str
) -> None:
    await proxied.write(lambda connection: insert_process(connection, "0"))
    await proxied.read(markers)
    proxy.lose, proxy.leaves, proxy.silent, proxy.marker = [lost], True, True, b"doubt"
    write = asyncio.create_task(proxied.write(lambda connection: insert_process(connection, "doubt")))
    await wait_until(lambda: proxy.lost == 1)
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        await proxied.read(markers)
    await wait_until(lambda: proxied.in_doubt)
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        await proxied.write(lambda connection: insert_process(connection, "meanwhile"))
    assert not write.done()
    proxy.come_back()
    (end,) = await asyncio.gather(write, return_exceptions=True)
    assert end == "doubt" if lost == "answer" else isinstance(end, StoreUnavailable)
    assert await proxied.read(markers) == (["0", "doubt"] if lost == "answer" else ["0"])
    assert await proxied.write(lambda connection: insert_process(connection, "z")) == "z"


async def test_a_statement_may_take_longer_than_the_server_may_be_silent(proxied: Database) -> None:
    for execute in (proxied.read, proxied.write):
        assert await execute(lambda connection: connection.value("SELECT 1 FROM pg_sleep(0.7)")) == 1


async def test_a_connection_that_has_lost_a_statement_is_not_waited_for(proxied: Database, proxy: Proxy) -> None:
    """The server is there, and waits for the statement."""
    await proxied.write(lambda connection: insert_process(connection, "0"))
    proxy.lose, proxy.silent, proxy.marker = ["request"], True, b"again"
    assert await proxied.write(lambda connection: insert_process(connection, "again")) == "again"
    assert (proxy.lost, await proxied.read(markers)) == (1, ["0", "again"])


async def test_a_connection_that_has_lost_the_rest_of_a_transaction_is_not_waited_for(proxied: Database, proxy: Proxy) -> None:
    """The server has executed what came before it, and waits for the rest."""
    await proxied.write(lambda connection: insert_process(connection, "0"))
    at_work = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND wait_event = 'ClientRead'"
    executed = 0

    def write(connection: Connection) -> str:
        nonlocal executed
        executed += 1
        found = insert_process(connection, "again")
        if executed == 1:
            # Sent by itself, before the COMMIT that is lost.
            deadline = time.monotonic() + 30
            while server().execute(at_work) == [(0,)]:
                assert time.monotonic() < deadline
        return found

    proxy.lose, proxy.silent, proxy.marker = ["request"], True, b"again"
    assert await proxied.write(write) == "again"
    assert (proxy.lost, executed, await proxied.read(markers)) == (1, 2, ["0", "again"])


def test_the_question_whether_the_server_works_is_not_waited_for_either() -> None:
    question = Question.connect(server().url(server().create_database()))
    question.answer_timeout = 0.2
    with pytest.raises(psycopg.OperationalError, match="the server does not answer"):
        question.execute("SELECT pg_sleep(60)")
    assert question.closed


async def test_the_server_frees_the_lock_of_a_daemon_whose_machine_is_gone(proxied: Database) -> None:
    def shown(connection: Connection) -> list[str]:
        names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
        return [str(connection.value(f"SHOW {name}")) for name in names]

    assert await proxied.write(shown) == ["10", "5", "3", "20000"]
