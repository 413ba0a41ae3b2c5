"""`portico audit`, while a gateway runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.store import AuditRecord, Store, schema
from gateway.store.sqlite import sqlite_url
from tests.support.daemon import RunningGateway
from tests.support.portico_command import PorticoCommand
from tests.support.requests import create_session
from tests.support.stores import sql

WriteScenario = Callable[..., str]


async def test_audit_prints_the_decisions_of_sessions(
    portico: RunningGateway, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    call = {"id": "c", "name": "shell", "input": {"command": "two\nlines"}}
    options = {"scenario": write_scenario([{"tool_call": call}, {"text": "done"}])}
    sessions = [
        (await create_session(portico.client, options=options, grants=[{"name": "shell", "trust": True}]))["sessionId"]
        for _ in range(2)
    ]
    code, out, err = await PorticoCommand(tmp_path, "audit").run()
    assert (code, err, len(out.splitlines())) == (0, "", 2)
    line = out.splitlines()[1]
    assert line.endswith(f'{sessions[1]} script shell c trusted by trust {{"command": "two\\nlines"}}')
    _, out, _ = await PorticoCommand(tmp_path, "audit", "--session", sessions[0], "--json").run()
    [record] = [json.loads(line) for line in out.splitlines()]
    assert (record["session_id"], record["outcome"], record["by"]) == (sessions[0], "trusted", "trust")
    _, out, _ = await PorticoCommand(tmp_path, "audit", "--limit", "1").run()
    assert out.splitlines() == [line]


async def test_audit_prints_no_control_characters(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    store = await Store.open(sqlite_url(tmp_path / "data"))
    hidden = "a\x1b[2K\x1b]52;c;aGk=\x07\x08\x9b31m\u202eb\u2028\x7f"
    await store.audit.append(
        [AuditRecord(1.0, "sess_1", "run_1", hidden, hidden, hidden, hidden, hidden, hidden, f'{{"x": "{hidden}"}}')]
    )
    await store.close()
    _, text, _ = await PorticoCommand(tmp_path, "audit").run()
    _, as_json, _ = await PorticoCommand(tmp_path, "audit", "--json").run()
    for out in (text, as_json):
        assert out.endswith("\n") and out.removesuffix("\n").isprintable()
    assert r"a\x1b[2K\x1b]52;c;aGk=\x07\x08\x9b31m\u202eb" in text
    assert json.loads(as_json)["call_id"] == hidden


async def test_audit_without_data_prints_nothing_and_creates_no_data(tmp_path: Path) -> None:
    assert await PorticoCommand(tmp_path, "audit").run() == (0, "", "")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("version", [4, 99])
async def test_audit_does_not_change_a_database_of_another_version(tmp_path: Path, version: int) -> None:
    """A daemon of that version may be running with it."""
    (tmp_path / "data").mkdir()
    await (await Store.open(sqlite_url(tmp_path / "data"))).close()
    sql(tmp_path / "data", f"UPDATE store_version SET version = {version}")
    before = (tmp_path / "data" / "portico.db").read_bytes()
    code, out, err = await PorticoCommand(tmp_path, "audit").run()
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert f"is of version {version}, and this Portico reads version {schema.VERSION} only" in err
    assert (tmp_path / "data" / "portico.db").read_bytes() == before
