"""Modes of the data directory and the files in it: only the user of the daemon can access them."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway import private_files
from gateway.cli.main import main
from gateway.errors import ConfigError
from gateway.private_files import private_data_directory, private_directory, private_file
from gateway.security.secret_files import read_or_create
from gateway.server.data_dir_lock import data_dir_lock
from tests.conftest import write_config
from tests.support.daemon import gateway_config, run_gateway
from tests.support.portico_command import PorticoCommand
from tests.support.requests import create_session

UMASKS = [0o000, 0o777]
INITIALIZE = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'
NEW = b'{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"%b","mcpServers":[]}}\n'


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Return the paths in a folder, and the folder itself, that the group or other users can access; and their modes."""
    found = [folder, *folder.rglob("*")]
    return [f"{path} {path.lstat().st_mode:o}" for path in found if path.lstat().st_mode & 0o077 and not path.is_symlink()]


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PORTICO_API_KEY", "PORTICO_CONFIG", "PORTICO_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "share" / "data"


@pytest.mark.parametrize(("before", "mask"), [(None, 0o000), (None, 0o777), (0o755, 0o022), (0o777, 0o000)])
@pytest.mark.parametrize("command", [["key"], ["key", "add", "phone"]])
def test_first_command_makes_a_private_data_directory(data_dir: Path, command: list[str], before: int | None, mask: int) -> None:
    if before is not None:
        data_dir.mkdir(parents=True)
        data_dir.chmod(before)
    data_dir.parent.parent.chmod(0o700)
    with umask(mask):
        result = CliRunner().invoke(main, [*command, "--data-dir", str(data_dir)])
    assert result.exit_code == 0, result.output
    assert open_to_others(data_dir) == []
    if before is None:
        assert open_to_others(data_dir.parent) == []


async def test_acp_as_the_first_command_makes_private_files(tmp_path: Path) -> None:
    write_config(tmp_path, gateway_config(tmp_path))
    with umask(0o000):
        code, out, _ = await PorticoCommand(tmp_path, "acp", "echo").run(INITIALIZE + NEW % str(tmp_path).encode())
    assert (code, "sessionId" in out) == (0, True)
    assert (tmp_path / "data" / "portico.db").exists()
    assert open_to_others(tmp_path / "data") == []


@pytest.mark.parametrize("mask", UMASKS)
async def test_daemon_makes_private_files_also_in_a_folder_that_exists(tmp_path: Path, mask: int) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    scenario = tmp_path / "scenes" / "scene.json"
    scenario.parent.mkdir(exist_ok=True)
    scenario.write_text('{"turns": [{"steps": [{"text": "hello"}]}]}')
    agents = {
        "recorded": {"driver": "script", "cwd": str(scenario.parent), "record": True, "options": {"scenario": "scene.json"}}
    }
    with umask(mask):
        config = gateway_config(tmp_path, agents=agents)
        with data_dir_lock(data):
            async with run_gateway(config) as running:
                await create_session(running.client, "recorded")
                await create_session(running.client, "echo")
                await running.gateway.discovery.all_agents()
                assert {"portico.db", "portico.db-wal", "portico.db-shm"} <= {path.name for path in data.iterdir()}
                assert open_to_others(data) == []
    names = {path.name for path in data.rglob("*")}
    assert {"portico.db", "lock", "instance-id", "discovery.json", "transcripts", "state"} <= names
    assert open_to_others(data) == []


async def test_start_corrects_the_modes_of_an_older_data_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    for name in ("transcripts", "state", "workspaces/echo"):
        (data / name).mkdir(parents=True)
    for name in ("api-key", "vault-key", "transcripts/exec_1.jsonl", "workspaces/echo/project.txt", "portico.db-wal"):
        (data / name).write_text("")
    project = data / "workspaces" / "echo" / "project.txt"
    with closing(sqlite3.connect(data / "portico.db")) as database, database:
        database.execute("create table other (id)")
    for path in (data, *data.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    async with run_gateway(gateway_config(tmp_path)):
        pass
    assert open_to_others(data) == [f"{data}/workspaces/echo 40777", f"{project} 100666"]
    assert f"{data} was accessible to other users (mode 0777); its mode is 0700 now" in caplog.text


async def test_database_outside_of_the_data_directory_is_private(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.db"
    file.write_bytes(b"")
    file.chmod(0o644)
    async with run_gateway(gateway_config(tmp_path, store={"url": f"sqlite:///{file}"})):
        names = ("elsewhere.db", "elsewhere.db-shm", "elsewhere.db-wal")
        assert [os.stat(tmp_path / name).st_mode & 0o777 for name in names] == [0o600] * 3


def test_shared_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(ConfigError, match="users share"):
        private_data_directory(tmp_path)
    assert tmp_path.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.parametrize("name", ["", "api-key", "portico.db", "state", "transcripts/sess_1.jsonl"])
@pytest.mark.parametrize("refused", [True, False], ids=["not-the-owner", "no-modes"])
def test_modes_that_cannot_be_changed_are_refused(
    tmp_path: Path, name: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    tmp_path.chmod(0o700)
    if name:
        (tmp_path / "transcripts").mkdir(mode=0o700)
        path.mkdir() if name == "state" else path.write_text("")
    path.chmod(0o755)

    def chmod(*_: object) -> None:
        if refused:
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(private_files.Path, "chmod", chmod)
    with pytest.raises(ConfigError, match=f"{path} is accessible to other users \\(mode 0755\\)"):
        private_data_directory(tmp_path)


def test_files_that_a_directory_links_to_keep_their_modes(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "public"
    private_directory(data)
    elsewhere.write_text("")
    elsewhere.chmod(0o644)
    (data / "link").symlink_to(elsewhere)
    private_data_directory(data)
    assert elsewhere.stat().st_mode & 0o777 == 0o644


def test_nothing_is_logged_about_a_private_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    read_or_create(tmp_path / "data" / "secret", lambda: "x")
    os.close(private_file(tmp_path / "data" / "other", os.O_WRONLY))
    private_data_directory(tmp_path / "data")
    assert caplog.text == ""
