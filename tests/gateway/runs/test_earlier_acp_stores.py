"""The sessions of earlier releases, in which each `portico acp` had a data directory of its own."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from gateway.security.encryption import SecretEncryption
from tests.daemon import gateway_config, run_gateway
from tests.gateway.requests import create_session

# With `store.url` none is imported: the files of a data directory belong to its own SQLite file.
pytestmark = pytest.mark.sqlite_only


async def earlier_store(folder: Path) -> str:
    """Make a data directory `acp/1` as an earlier release left it, and return the id of its session."""
    acp = folder / "data" / "acp"
    async with run_gateway(gateway_config(folder, server={"data_dir": str(acp / "1")})) as running:
        session = str((await create_session(running.client, "echo"))["sessionId"])
        secrets = SecretEncryption(acp / "1").encrypt({"token": "a secret"})
        await running.gateway.store.sessions.update(session, secrets=secrets)
    (acp / "1" / "state" / session).mkdir(parents=True)
    (acp / "1" / "state" / session / "file").write_text("x")
    return session


async def test_sessions_of_an_earlier_release_are_imported_once(tmp_path: Path) -> None:
    session = await earlier_store(tmp_path)
    for _ in range(2):
        async with run_gateway(gateway_config(tmp_path)) as running:
            found = (await running.client.get(f"/session/{session}?history=full")).json()
            assert [message["role"] for message in found["history"]["full"]] == ["user", "assistant"]
            record = await running.gateway.store.sessions.get(session)
            assert record is not None
            assert SecretEncryption(tmp_path / "data").decrypt(record.secrets) == {"token": "a secret"}
    assert (tmp_path / "data" / "state" / session / "file").read_text() == "x"
    assert [folder.name for folder in (tmp_path / "data" / "acp").iterdir()] == ["imported-1"]


async def test_files_in_the_data_directory_are_not_replaced(tmp_path: Path) -> None:
    async with run_gateway(gateway_config(tmp_path)):
        pass
    session = await earlier_store(tmp_path)
    present = tmp_path / "data" / "state" / session / "present"
    present.parent.mkdir(parents=True)
    present.write_text("y")
    async with run_gateway(gateway_config(tmp_path)) as running:
        assert await running.gateway.store.sessions.get(session) is not None
    assert [file.name for file in present.parent.iterdir()] == ["present"]
    assert [folder.name for folder in (tmp_path / "data" / "acp").iterdir()] == ["imported-1"]


async def test_a_directory_that_is_in_use_is_imported_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    session = await earlier_store(tmp_path)
    with (tmp_path / "data" / "acp" / "1" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        async with run_gateway(gateway_config(tmp_path)) as running:
            assert await running.gateway.store.sessions.get(session) is None
    assert "are imported when the portico acp of an earlier release that uses it has ended" in caplog.text
    async with run_gateway(gateway_config(tmp_path)) as running:
        assert await running.gateway.store.sessions.get(session) is not None


async def test_a_directory_that_cannot_be_read_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "data" / "acp" / "1"
    folder.mkdir(parents=True)
    (folder / "portico.db").write_bytes(b"no database" * 1000)
    async with run_gateway(gateway_config(tmp_path)) as running:
        assert (await running.client.get("/sessions")).status_code == 200
    assert f"the sessions in {folder} are not imported" in caplog.text
    assert (folder / "portico.db").read_bytes() == b"no database" * 1000
