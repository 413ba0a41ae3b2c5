"""`portico store export` on the command line: its output, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli.store import store
from tests.support.daemon import Daemon
from tests.support.earlier_store import NUMBER, create_earlier_store


def export(*arguments: str) -> Result:
    return CliRunner().invoke(store, ["export", *arguments])


def test_the_rows_of_an_earlier_store_come_to_standard_output(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gateway", "store", "export", create_earlier_store(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "events: 1 rows\nmessages: 1 rows\nnotes: 0 rows\nschema_version: 1 rows\nsessions: 1 rows\n"
    assert [json.loads(line)["table"] for line in done.stdout.splitlines()] == [
        "events",
        "messages",
        "schema_version",
        "sessions",
    ]


async def test_the_error_of_a_daemon_names_the_command_that_keeps_the_rows(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    url = create_earlier_store(tmp_path / "data")
    before = (tmp_path / "data" / "portico.db").read_bytes()
    with pytest.raises(RuntimeError, match=rf"version {NUMBER}: .* `portico store export {url} --output FILE`"):
        await daemon.start()
    assert await daemon.stop() != 0
    assert (tmp_path / "data" / "portico.db").read_bytes() == before
    assert not list((tmp_path / "data").glob("portico.db-*"))
    exported = tmp_path / "rows.jsonl"
    assert (await asyncio.to_thread(export, url, "--output", str(exported))).exit_code == 0
    for file in (tmp_path / "data").glob("portico.db*"):
        file.rename(tmp_path / file.name)
    await daemon.start()
    assert await daemon.stop() == 0


def test_a_new_file_is_private_and_complete_or_not_there(tmp_path: Path) -> None:
    url, file = create_earlier_store(tmp_path), tmp_path / "rows.jsonl"
    missing = export(f"sqlite:///{tmp_path}/none.db", "--output", str(file))
    assert missing.exit_code == 1 and "there is no database in" in missing.output
    assert not file.exists() and not (tmp_path / "none.db").exists()
    assert export(url, "--output", str(file)).exit_code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    written = file.read_bytes()
    assert len(written.splitlines()) == 4
    again = export(url, "--output", str(file))
    assert again.exit_code == 1 and f"{file} exists: give the path of a new file" in again.output
    assert file.read_bytes() == written


def test_a_password_on_the_command_line_is_refused() -> None:
    for url in ("postgresql://me:word@127.0.0.1:1/portico", "postgresql://127.0.0.1:1/portico?password=word"):
        done = export(url)
        assert done.exit_code == 1 and "PGPASSWORD" in done.output and "word@" not in done.output
