"""Database files that are truncated, removed, emptied, damaged or not writable: nothing of it goes unnoticed."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gateway.app import Gateway
from gateway.config import parse
from gateway.errors import ConfigError
from gateway.security.redaction import Redactor
from gateway.store import MessageRow, SessionRecord, Store
from gateway.store.sqlite import sqlite_url
from tests.support.daemon import gateway_config, run_gateway
from tests.support.portico_command import PorticoCommand
from tests.support.requests import create_session
from tests.support.stored_messages import message_bodies

pytestmark = pytest.mark.sqlite_only
MESSAGES = 20


async def killed_store(folder: Path) -> Path:
    """Return a copy of the files of a store with MESSAGES commits of one message, as a killed daemon leaves them."""
    live, copy = folder / "live", folder / "data"
    live.mkdir()
    store = await Store.open(sqlite_url(live))
    await store.sessions.create(SessionRecord("s", "echo"), [])
    for number in range(MESSAGES):
        await store.messages.append("s", [MessageRow(f'{{"role":"user","content":"{number}"}}')])
    shutil.copytree(live, copy)
    await store.close()
    return copy


async def test_intact_files_are_not_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = await killed_store(tmp_path)
    for _ in range(3):
        store = await Store.open(sqlite_url(data))
        assert store.problem is None
        assert len(await message_bodies(store, "s")) == MESSAGES
        await store.close()


async def test_another_program_may_move_the_log_into_the_database(tmp_path: Path) -> None:
    """As `sqlite3` and `portico audit` do when they are the last to close it."""
    data = await killed_store(tmp_path)
    with closing(sqlite3.connect(data / "portico.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert not (data / "portico.db-wal").exists()
    store = await Store.open(sqlite_url(data))
    assert (store.problem, len(await message_bodies(store, "s"))) == (None, MESSAGES)
    await store.close()


@pytest.mark.parametrize(("evidence", "removed"), [("state", True), ("transcripts", False)])
async def test_emptied_database_is_not_taken_for_a_new_one(tmp_path: Path, evidence: str, removed: bool) -> None:
    config = gateway_config(tmp_path)
    data = tmp_path / "data"
    async with run_gateway(config):
        pass
    for number in range(2):
        (data / evidence / f"sess_{number}").mkdir(parents=True)
    (data / "portico.db").unlink() if removed else (data / "portico.db").write_bytes(b"")
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"portico\.db is empty, but was used before .*{evidence}.*: restore a backup"):
            await Gateway(parse(config), (), Redactor()).open()
    shutil.move(data / evidence, tmp_path / "moved")
    async with run_gateway(config) as running:
        assert (await running.client.get("/readyz")).status_code == 200


async def test_new_database_of_another_url_is_not_taken_for_an_emptied_one(tmp_path: Path) -> None:
    for url in ("sqlite://", "sqlite://", f"sqlite:///{tmp_path}/other.db"):
        async with run_gateway(gateway_config(tmp_path, store={"url": url})) as running:
            assert (await running.client.get("/readyz")).status_code == 200
            await create_session(running.client, "echo")
            (tmp_path / "data" / "state" / "sess_1").mkdir(parents=True, exist_ok=True)


def damaged_database(data: Path) -> None:
    (data / "portico.db").write_bytes(bytes(range(256)) * 64)


def directory_as_database(data: Path) -> None:
    (data / "portico.db").mkdir()


def directory_as_lock(data: Path) -> None:
    """As of a read-only directory, where the lock cannot be opened either; the administrator may write to that."""
    (data / "lock").mkdir()


def file_as_data_directory(data: Path) -> None:
    data.rmdir()
    data.write_text("")


UNUSABLE: dict[Callable[[Path], None], str] = {
    damaged_database: "(file is not a database): restore a backup, or move it",
    directory_as_database: "(unable to open database file): the file and its folder must be readable and writable",
    directory_as_lock: "cannot be used (Is a directory): make it writable for this user, or choose another with --data-dir",
    file_as_data_directory: "cannot be used (File exists): make it writable for this user, or choose another with --data-dir",
}


@pytest.mark.parametrize("prepare", UNUSABLE)
async def test_daemon_with_unusable_files_does_not_start(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    (tmp_path / "data").mkdir()
    prepare(tmp_path / "data")
    code, out, err = await PorticoCommand(tmp_path, "serve").run()
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert err.startswith("Error: ") and UNUSABLE[prepare] in err and str(tmp_path / "data") in err


async def test_acp_client_gets_the_error_of_a_store_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    damaged_database(tmp_path / "data")
    (tmp_path / "data" / "portico.db").chmod(0o600)
    messages = [{"id": 1, "method": "initialize", "params": {"protocolVersion": 1}}, {"id": 2, "method": "session/list"}]
    lines = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in messages)
    code, out, err = await PorticoCommand(tmp_path, "acp", "echo").run(lines.encode())
    assert (code, err[:7], len(err.splitlines())) == (1, "Error: ", 1)
    assert "(file is not a database): restore a backup, or move it" in err
    refused = [json.loads(line) for line in out.splitlines()]
    assert [(answer["id"], answer["error"]["message"]) for answer in refused] == [
        (1, f"initialize: {err[7:].strip()}"),
        (2, f"session/list: {err[7:].strip()}"),
    ]
    # Also where no request waits for it.
    assert await PorticoCommand(tmp_path, "acp", "echo").run(b"") == (1, "", err)


async def test_damaged_pages_that_the_start_reads_are_one_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    store = await Store.open(sqlite_url(data))
    for number in range(100):
        await store.sessions.create(SessionRecord(f"s{number}", "echo", json.loads('{"options": {}}')), [MessageRow("x" * 2000)])
    await store.close()
    content = bytearray((data / "portico.db").read_bytes())
    content[8192:] = b"\xa5" * (len(content) - 8192)
    (data / "portico.db").write_bytes(content)
    code, out, err = await PorticoCommand(tmp_path, "serve").run()
    assert (code, out, len(err.splitlines())) == (1, "", 1), err
    assert "cannot be used (database disk image is malformed): restore a backup" in err
    code, out, err = await PorticoCommand(tmp_path, "audit").run()
    assert (code, out, len(err.splitlines())) == (1, "", 1), err


async def test_damage_that_is_found_later_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = await Store.open(sqlite_url(tmp_path))
    await store.sessions.create(SessionRecord("s", "echo"), [MessageRow("x" * 2000) for _ in range(100)])
    await store.close()
    with closing(sqlite3.connect(tmp_path / "portico.db")) as connection:
        [page] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'messages'").fetchone()
        [size] = connection.execute("PRAGMA page_size").fetchone()
    content = bytearray((tmp_path / "portico.db").read_bytes())
    content[(page - 1) * size : page * size] = b"\xa5" * size
    (tmp_path / "portico.db").write_bytes(content)
    store = await Store.open(sqlite_url(tmp_path))
    assert store.problem is None
    for _ in range(2):
        with pytest.raises(Exception, match="malformed"):
            await message_bodies(store, "s")
    assert store.problem == "the database is damaged: stop the gateway and restore a backup; the log has details"
    assert caplog.text.count("portico.db cannot be used (database disk image is malformed): restore a backup") == 1
    await store.close()


async def test_text_that_is_not_utf_8_is_damage_and_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = await Store.open(sqlite_url(tmp_path))
    await store.sessions.create(SessionRecord("s", "echo"), [MessageRow("my words")])
    with closing(sqlite3.connect(tmp_path / "portico.db")) as connection:
        connection.execute("UPDATE messages SET body = CAST(x'6d7920776f726473ff' AS TEXT)")
        connection.commit()
    with pytest.raises(Exception, match="UTF-8"):
        await message_bodies(store, "s")
    assert store.problem is not None and "damaged" in store.problem
    assert "cannot be used (Could not decode to UTF-8 column 'body'): restore a backup" in caplog.text
    assert "my words" not in caplog.text
    await store.close()
