"""`portico store copy`: everything is copied, an interrupted copy goes on, and nothing that is used is touched."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gateway.errors import ConfigError
from gateway.store import AuditRecord, EventRow, MessageRow, RunRecord, SessionRecord, Store, copying
from gateway.store.copying import TABLES, copy_store
from gateway.store.sqlite import sqlite_url
from tests.daemon import gateway_config, run_gateway
from tests.gateway.requests import create_session
from tests.gateway.stored_messages import message_bodies
from tests.postgresql import server

pytestmark = pytest.mark.one_store
TEXT = "NUL \0, the escape \ufdd0, ä, 東京, 🙂, %s, ' and \\"


async def fill(url: str, sessions: int = 30) -> None:
    store = await Store.open(url)
    decision = AuditRecord(1.5, "s0", "r", TEXT, "t" * 400, "c", "denied", "policy", TEXT, "{}")
    for n in range(sessions):
        name = f"{'sS_ä'[n % 4]}{n}"
        record = SessionRecord(name, "echo", {"n": n, "text": TEXT}, os.urandom(20), None, n / 3, "owner" if n % 2 else None)
        await store.sessions.create(record, [f'"{m}"' for m in range(20)], RunRecord(f"run {n}", name, "waiting", None, 1, 2.5))
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
    assert [table.name for table in first] == [table.name for table in TABLES]
    assert {table.name: table.rows for table in first} | {"audit": 150, "events": 240, "messages": 840, "notes": 30} == {
        table.name: table.rows for table in first
    }
    assert ("events", 240, 240) in seen and len([name for name, *_ in seen if name == "events"]) > 3
    assert await copy_store(urls[1], urls[2]) == first
    found = []
    for url in urls:
        store = await Store.open(url)
        found.append((await store.sessions.page(100), await store.session_metadata.get("s0"), await message_bodies(store, "ä3")))
        # New rows get numbers of their own.
        await store.audit.append([AuditRecord(2.5, "new", "r", "a", "t", "c", "denied", "b", None, "{}")])
        assert len(await store.audit.newest(1000)) == 151
        await store.close()
    assert found[0] == found[1] == found[2]
    assert found[0][1].title == TEXT


async def test_a_copied_gateway_goes_on(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    url = server().url(server().create_empty_database())
    async with run_gateway(gateway_config(tmp_path)) as portico:
        session = (await create_session(portico.client, "echo", "before"))["sessionId"]
    await copy_store(sqlite_url(tmp_path / "data"), url)
    async with run_gateway(gateway_config(tmp_path, store={"url": url})) as portico:
        answer = await portico.client.post(f"/session/{session}", json={"messages": [{"role": "user", "content": "after"}]})
        assert answer.json()["stopReason"] == "end_turn"
        assert len(await message_bodies(portico.gateway.store, session)) == 4
        found = await portico.client.get("/aap/v3/search", params={"q": "before"})
        assert len(found.json()["results"]) == 2


@pytest.mark.slow
async def test_a_copy_that_is_killed_goes_on(tmp_path: Path) -> None:
    await fill(sqlite_url(tmp_path), 60)
    url = server().url(server().create_empty_database())
    command = [sys.executable, "-m", "gateway", "store", "copy", sqlite_url(tmp_path), url]
    chosen, killed = random.Random(7), 0
    for _ in range(12):
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=dict(os.environ)
        )
        assert process.stdout is not None and process.stderr is not None
        for _ in range(chosen.randrange(25)):
            if not await process.stderr.readline():
                break
        if process.returncode is None and killed < 6:
            process.send_signal(signal.SIGKILL)
        out, err = await process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, err.decode()
        killed += 1
        with pytest.raises(ConfigError, match=r"not finished: run `portico store copy` again"):
            await Store.open(url)
    assert process.returncode == 0 and killed >= 3
    assert "The copy is complete" in out.decode() and "events\t480 rows" in out.decode()
    store = await Store.open(url)
    assert len(await store.sessions.page(100)) == 60
    await store.close()


async def test_what_is_used_is_not_touched(tmp_path: Path) -> None:
    await fill(sqlite_url(tmp_path), 2)
    url = server().url(server().create_empty_database())
    await fill(url, 1)
    with pytest.raises(ConfigError, match=r"the target is used: its table audit has rows"):
        await copy_store(sqlite_url(tmp_path), url)
    other = server().url(server().create_empty_database())
    async with run_gateway(gateway_config(tmp_path / "gateway", store={"url": other})):
        with pytest.raises(ConfigError, match=r"another daemon uses the database"):
            await copy_store(sqlite_url(tmp_path), other)
    store = await Store.open(url)
    assert len(await store.sessions.page(100)) == 1
    await store.close()


async def test_a_source_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    await fill(sqlite_url(tmp_path), 3)
    url = server().url(server().create_empty_database())
    changed = False

    def change(name: str, rows: int, total: int) -> None:
        nonlocal changed
        if name == "sessions" and rows and not changed:
            changed = True
            with closing(sqlite3.connect(tmp_path / "portico.db", isolation_level=None)) as connection:
                connection.execute("UPDATE sessions SET agent = 'another'")

    with pytest.raises(ConfigError, match=r"the table sessions of the copy differs \(3 of 3 rows"):
        await copy_store(sqlite_url(tmp_path), url, change)
    assert changed


async def test_a_password_is_not_taken_from_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gateway", "store", "copy", sqlite_url(tmp_path), "postgresql://me:secret-word@localhost/x"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, err = await process.communicate()
    assert process.returncode == 1 and b"PGPASSWORD" in err and b"secret-word" not in err
