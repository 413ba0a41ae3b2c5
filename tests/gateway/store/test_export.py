"""`portico store export`: all rows of a database of any version, as JSON lines, and nothing in it is changed."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gateway.errors import ConfigError
from gateway.store import EventRow, MessageRow, RunRecord, SessionRecord, Store, schema
from gateway.store.export import ROWS, export_store
from gateway.store.sqlite import sqlite_url
from tests.gateway.store.test_versions import content
from tests.support import stores
from tests.support.earlier_store import MESSAGE, NUMBER, create_earlier_store, write_and_kill


async def exported(url: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows by table, and check that their numbers are reported."""
    output = io.BytesIO()
    counts = await export_store(url, output)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in counts}
    for line in output.getvalue().decode().splitlines():
        row = json.loads(line)
        assert list(row) == ["table", "row"]
        found[row["table"]].append(row["row"])
    assert {name: len(rows) for name, rows in found.items()} == counts
    return found


async def test_a_store_from_before_version_1_is_exported(tmp_path: Path) -> None:
    url = create_earlier_store(tmp_path)
    before = content(tmp_path)
    assert await exported(url) == {
        "schema_version": [{"version": NUMBER, "compatible_from": 10}],
        "sessions": [{"id": "s", "agent": "echo", "secrets": {"base64": "AP8gZW5jcnlwdGVk"}, "created_at": 1.5}],
        "messages": [{"session_id": "s", "position": 0, "body": MESSAGE, "seq": None}],
        "events": [{"log_id": "s", "first": 1, "last": 3, "body": '[1, "ä"]\n[2]'}],
        "notes": [],
    }
    assert content(tmp_path) == before


@pytest.mark.sqlite_only
async def test_the_last_writes_of_a_killed_daemon_are_exported(tmp_path: Path) -> None:
    url = create_earlier_store(tmp_path)
    write_and_kill(tmp_path / "portico.db")
    before = content(tmp_path)
    assert [row["body"] for row in (await exported(url))["messages"]] == [MESSAGE, "last"]
    assert content(tmp_path) == before
    # A copy without the index of the log.
    (tmp_path / "portico.db-shm").unlink()
    assert [row["body"] for row in (await exported(url))["messages"]] == [MESSAGE, "last"]
    assert content(tmp_path) | {"portico.db-shm": None} == before | {"portico.db-shm": None}


async def test_a_store_of_today_is_exported_while_a_daemon_uses_it(tmp_path: Path) -> None:
    url = stores.store_url(tmp_path)
    store = await Store.open(url)
    texts = [f'"text {n} of many"' for n in range(3 * ROWS)]
    rows = [MessageRow(text) for text in texts]
    await store.sessions.create(SessionRecord("s", "echo", secrets=b"\xff"), rows, RunRecord("r", "s", "running", None, 1))
    await store.events.append(EventRow("s", 1, 1, b"{}"), [MessageRow('"b"', 1)])
    found = await exported(url)
    await store.close()
    # Those of the index on SQLite are left out.
    assert found.keys() - {"store_writers"} == set(schema.tables())
    assert found["store_version"] == [{"version": schema.VERSION}]
    assert [row["body"] for row in found["messages"]] == [*texts, '"b"']
    assert found["sessions"][0]["secrets"] == {"base64": "/w=="}
    assert found["runs"][0]["state"] == "running"
    assert await exported(url) | {"store_writers": []} == found | {"store_writers": []}


@pytest.mark.sqlite_only
async def test_what_is_no_database_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no database in"):
        await exported(sqlite_url(tmp_path))
    assert content(tmp_path) == {}
    (tmp_path / "portico.db").write_bytes(b"no database" * 100)
    with pytest.raises(ConfigError, match="file is not a database"):
        await exported(sqlite_url(tmp_path))


@pytest.mark.sqlite_only
async def test_a_file_that_is_written_while_it_is_exported_is_reported(tmp_path: Path) -> None:
    url = create_earlier_store(tmp_path)

    class Output(io.BytesIO):
        def flush(self) -> None:
            stores.sql(tmp_path, "DELETE FROM messages")

    with pytest.raises(ConfigError, match="another program has written it while it was read"):
        await export_store(url, Output())


@pytest.mark.one_store
async def test_an_output_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    url = create_earlier_store(tmp_path)
    output = Mock(spec=io.BytesIO)
    output.write.side_effect = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(ConfigError, match="rows cannot be written: No space"):
        await export_store(url, output)
