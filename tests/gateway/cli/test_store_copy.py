"""A gateway whose store was moved with `portico store copy` answers as before."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from gateway.cli.store import store
from gateway.security import credentials
from gateway.server.data_dir_lock import data_dir_lock
from gateway.store.sqlite import sqlite_url
from tests.gateway.protocols.aap.test_history import PIXEL
from tests.gateway.sessions.test_approval_timeout import LATE, create_waiting_session
from tests.support.daemon import RunningGateway, gateway_config, http_client, run_gateway
from tests.support.named_keys import add_key
from tests.support.postgresql import server
from tests.support.requests import create_session, execute, send_turn, user_message

TEXTS = ("NUL \0 and \ufdd0", "ä 東京 😀 ﷺ", "%s {} ' \\ \" \n\t", "a\u0301 \u2028 \x7f", "x" * 300_000)
QUERIES = ("東京", "nul", "a", '"and"', "portico", "xxx", "é ä")


async def copy(source: str, target: str) -> tuple[int, str, str]:
    """Run the command. Return its exit code and what it has printed."""
    command = [sys.executable, "-m", "gateway", "store", "copy", source, target]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=dict(os.environ))
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def use(running: RunningGateway, key: str, write_scenario: Callable[..., str]) -> None:
    """Store something of each kind."""
    client = running.client
    for n, text in enumerate(TEXTS):
        session = (await create_session(client, "echo", text))["sessionId"]
        await send_turn(client, session, f"{text} again {n}")
        titled = await client.patch(f"/aap/v3/sessions/{session}", json={"title": f"title {text[:100]}"})
        assert titled.status_code == 200, titled.text
    pixel = user_message([{"type": "text", "text": "look"}, {"type": "image", "url": PIXEL, "detail": "low"}])
    options = {"scenario": write_scenario([{"text": "{images}"}], name="images.json"), "token": "secret-token"}
    await create_session(client, "script", pixel, options=options)
    async with http_client(running.url) as named:
        named.headers["Authorization"] = f"Bearer {key}"
        await create_session(named, "echo", "of a named key")
    waiting = await create_waiting_session(client, write_scenario)
    await send_turn(client, waiting, *LATE)
    await create_waiting_session(client, write_scenario)
    await execute(client, "a task", "echo", idempotency_key="once")
    answer = await client.post("/v1/responses", json={"model": "echo", "input": "a response", "store": True})
    assert answer.status_code == 200, answer.text


async def all_pages(client: httpx.AsyncClient, path: str, after: str, **query: Any) -> list[Any]:
    found: list[Any] = []
    while True:
        answer = await client.get(path, params=query)
        found.append((answer.status_code, answer.json()))
        following = found[-1][1].get("next")
        if following is None:
            return found
        query[after] = following


async def answers(running: RunningGateway, key: str) -> dict[str, Any]:
    """Return what the gateway answers to everything that reads the store."""
    client, found = running.client, dict[str, Any]()
    for version in ("v1", "v2", "v3"):
        found[version] = await all_pages(client, f"/aap/{version}/sessions", "after", limit=3)
    sessions = [one["sessionId"] for _, page in found["v3"] for one in page["sessions"]]
    for session in sessions:
        base = f"/aap/v3/sessions/{session}"
        for path in ("", "/history?type=full", "/messages", "/log"):
            answer = await client.get(base + path)
            found[base + path] = answer.status_code, answer.json()
            assert answer.status_code == 200, answer.text

    for query in QUERIES:
        found[query] = await all_pages(client, "/aap/v3/search", "after", q=query, limit=4)
    found["audit"] = await all_pages(client, "/v1/audit", "before", limit=2)
    for path in ("/v1/keys", "/v1/policy", "/meta", "/v1/models", "/worktrees"):
        answer = await client.get(path)
        found[path] = answer.status_code, answer.json()
    async with http_client(running.url) as named:
        named.headers["Authorization"] = f"Bearer {key}"
        answer = await named.get("/aap/v3/sessions")
        found["named"] = answer.status_code, answer.json()
    answer = await client.post("/v1/execute", json={"task": "a task", "driver": "echo", "idempotency_key": "once"})
    found["execute"] = answer.status_code, answer.text
    return found


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, answer in expected.items():
        # Line by line, so that a difference is shown.
        assert json.dumps(found[name], indent=1).split("\n") == json.dumps(answer, indent=1).split("\n"), name


def run(*arguments: str) -> str:
    """Run the command in this process, and return its error."""
    result = CliRunner().invoke(store, ["copy", *arguments])
    assert result.exit_code == 1
    return result.output


def test_a_file_named_lock_is_left_as_it_is(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("backup", "copy")]
    lock = tmp_path / "lock"
    lock.write_text("notes of the user")
    lock.chmod(0o644)
    assert "there is no database in" in run(*urls)
    assert (lock.read_text(), lock.stat().st_mode & 0o777) == ("notes of the user", 0o644)
    with data_dir_lock(tmp_path):
        assert f"{lock} is locked: stop the portico that runs with the data directory {tmp_path}" in run(*urls)
        assert lock.read_text() == "notes of the user"


def test_an_error_of_a_url_names_the_argument(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/portico.db"
    assert "Error: SOURCE is no URL of a database" in run("portico.db", url)
    assert "Error: TARGET: there is no store for mysql" in run(url, "mysql://db.example/portico")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.sqlite_only
async def test_a_moved_gateway_answers_as_before(
    tmp_path: Path, write_scenario: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The answers have the time of the first use of a key.
    monkeypatch.setattr(credentials, "KEY_USED_INTERVAL", math.inf)
    rules = [{"tool": "other", "decide": "deny"}]
    agents = {
        "script": {"driver": "script", "cwd": str(tmp_path / "scenes"), "policy": rules},
        "echo": {"driver": "echo", "cwd": str(tmp_path)},
    }
    config = gateway_config(tmp_path, agents=agents)
    data = tmp_path / "data"
    async with run_gateway(config) as running:
        key = await add_key(running.gateway, "ann")
        await use(running, key, write_scenario)
    async with run_gateway(config) as running:
        expected = await answers(running, key)
    url = server().url(server().create_empty_database())
    code, out, err = await copy(sqlite_url(data), url)
    assert code == 0 and "The copy is complete" in out, err
    async with run_gateway({**config, "store": {"url": url}}) as running:
        found = await answers(running, key)
    assert_equal(found, expected)
    assert len(expected) > 40
    # And back, for another data directory.
    shutil.copytree(data, tmp_path / "back" / "data", ignore=shutil.ignore_patterns("portico.db*"))
    back = tmp_path / "back" / "data"
    code, _, err = await copy(url, sqlite_url(back))
    assert code == 0, err
    async with run_gateway({**config, "server": {**config["server"], "data_dir": str(back)}}) as running:
        found = await answers(running, key)
    assert_equal(found, expected)
