"""A folder whose file system does not answer: no other session waits for it, and the event loop never asks for it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from drivers.contract.agent_specs import Limits, SessionSpec
from drivers.contract.errors import AgentUnavailable
from drivers.runtime import cli_driver, file_threads
from drivers.runtime.process import Spawner
from drivers.script.driver import ScriptDriver
from gateway.agents import folder_access
from gateway.agents.folder_access import LIST_TIMEOUT, TIMEOUT
from tests.gateway.protocols.aap.test_session_updates import SESSIONS, create, turn
from tests.support.acp_client import Client, RpcFailed, connect
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import expect_error, user_message

CALLS = ("stat", "lstat", "open", "listdir", "scandir")


class WatchedFolder:
    """A folder whose file system hangs from `hang` to `answer`.

    `on_loop` are the accesses of the event loop, `blocked` counts those of threads that had to wait.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.on_loop: list[str] = []
        self.blocked = 0
        self._answers = threading.Event()
        self._answers.set()
        self._loop = threading.current_thread()

    def hang(self) -> None:
        self._answers.clear()

    def answer(self) -> None:
        self._answers.set()

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(path: Any = ".", *args: Any, **more: Any) -> Any:
            if not isinstance(path, int) and os.fsdecode(path).startswith(str(self.path)):
                if threading.current_thread() is self._loop:
                    self.on_loop.append("".join(traceback.format_stack(limit=12)))
                elif not self._answers.is_set():
                    self.blocked += 1
                    self._answers.wait(60)
            return function(path, *args, **more)

        return watched


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> Iterator[WatchedFolder]:
    """The folder `hung` below that of the agent `script`. Those who wait for it have `clock`."""
    found = WatchedFolder(tmp_path / "scenes" / "hung")
    found.path.mkdir(parents=True)
    (found.path / "scene.json").write_text('{"turns": [{"steps": [{"text": "hello"}]}]}')
    asks = {"name": "Write", "ask": True, "id": "a", "input": {"file_path": str(found.path / "a.txt"), "content": "new"}}
    (found.path / "asks.json").write_text(json.dumps({"turns": [{"steps": [{"tool_call": asks}]}]}))
    (tmp_path / "scenes" / "scene.json").write_text('{"turns": [{"steps": [{"text": "hello"}]}]}')
    for name in CALLS:
        monkeypatch.setattr(os, name, found.wrapped(getattr(os, name)))
    monkeypatch.setattr(folder_access, "clock", clock)
    yield found
    found.answer()


@pytest.fixture
async def running(tmp_path: Path, hung: WatchedFolder) -> AsyncIterator[RunningGateway]:
    config = gateway_config(tmp_path)
    config["agents"]["there"] = {"driver": "script", "cwd": str(hung.path), "options": {"scenario": "scene.json"}}
    async with run_gateway(config) as found:
        yield found


async def both(client: httpx.AsyncClient) -> tuple[str, str]:
    """A session in the folder, and one in another."""
    inside = await create(client, "script", options={"cwd": "hung", "scenario": "scene.json"})
    return inside, await create(client, "script", "scene.json")


async def folders(client: httpx.AsyncClient) -> dict[str, str]:
    """The folders of the listed sessions."""
    listed = (await client.get(SESSIONS)).json()["sessions"]
    return {one["sessionId"]: one["x-portico"]["cwd"] for one in listed}


async def opened(gateway: RunningGateway, agent: str = "script") -> Client:
    client, _ = connect(gateway.gateway, agent)
    await client.initialize()
    return client


async def test_the_event_loop_never_accesses_the_folder_of_a_session(running: RunningGateway, hung: WatchedFolder) -> None:
    client = running.client
    inside, _ = await both(client)
    await turn(client, inside, user_message("hi"))
    await turn(client, inside, user_message("hi"), agent={"options": {"cwd": "hung"}})
    assert (await folders(client))[inside] == str(hung.path)
    for path in (f"{SESSIONS}/{inside}", f"{SESSIONS}?cwd={hung.path}", f"{SESSIONS}/{inside}/files"):
        assert (await client.get(path)).status_code == 200
    assert (await client.post(f"{SESSIONS}/{inside}/fork", json={})).status_code == 201
    acp = await opened(running)
    await acp.request("session/list", dict(cwd=str(hung.path)))
    of_acp = (await acp.request("session/new", dict(cwd=str(hung.path), mcpServers=[])))["sessionId"]
    await acp.request("session/load", dict(sessionId=inside, cwd=str(hung.path), mcpServers=[]))
    await acp.request("session/fork", dict(sessionId=of_acp, cwd=str(hung.path), mcpServers=[]))
    for model in ("script", "there"):
        chat = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        assert (await client.post("/v1/chat/completions", json=chat)).status_code == 200
    asks = await create(client, "script", options={"cwd": "hung", "scenario": "asks.json"})
    await turn(client, asks, user_message("go"))
    assert (await client.get(f"{SESSIONS}/{asks}/calls/a/files")).status_code == 200
    assert hung.on_loop == []


async def test_no_other_session_waits_for_a_folder_that_does_not_answer(
    running: RunningGateway, hung: WatchedFolder, clock: ManualClock
) -> None:
    client = running.client
    inside, other = await both(client)
    hung.hang()
    requests = asyncio.gather(client.get(f"{SESSIONS}/{inside}/files"), folders(client))
    await clock.waited_for(LIST_TIMEOUT)
    await clock.waited_for(TIMEOUT)
    assert (await turn(client, other, user_message("hi")))["stopReason"] == "end_turn"
    await clock.advance(TIMEOUT)
    files, listed = await requests
    # The list has the folder as it is named, without a look at it.
    assert listed[inside] == str(hung.path)
    assert files.status_code == 503 and "has not answered within 5 s" in files.json()["error"]
    for body in ({"messages": [user_message("hi")]}, {"messages": [user_message("hi")], "agent": {"options": {"cwd": "hung"}}}):
        refused = expect_error(client.post(f"{SESSIONS}/{inside}/turns", json=body), 503)
        error = await clock.expire_until(refused, TIMEOUT)
        assert "the file system of the session's folder has not answered within 5 s" in error
    acp = await opened(running)
    assert inside in [one["sessionId"] for one in (await acp.request("session/list"))["sessions"]]
    with pytest.raises(RpcFailed, match="has not answered"):
        await clock.expire_until(acp.request("session/new", dict(cwd=str(hung.path), mcpServers=[])), TIMEOUT)
    hung.answer()
    assert (await turn(client, inside, user_message("hi")))["stopReason"] == "end_turn"
    assert hung.on_loop == []


async def test_requests_are_refused_while_all_threads_are_blocked(
    running: RunningGateway, hung: WatchedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = running.client
    inside, _ = await both(client)
    monkeypatch.setattr(file_threads, "MAX_THREADS", 0)
    for request in (
        client.post(f"{SESSIONS}/{inside}/turns", json={"messages": [user_message("hi")]}),
        client.post(f"{SESSIONS}/{inside}/fork", json={}),
        client.post(SESSIONS, json={"agent": {"name": "script", "options": {"cwd": "hung"}}}),
        client.get(f"{SESSIONS}?cwd={hung.path}"),
        client.get(f"{SESSIONS}/{inside}/files"),
        client.post("/v1/execute", json={"driver": "script", "task": "hi", "stream": False}),
    ):
        assert "0 file accesses are under way or blocked already" in await expect_error(request, 503)
    assert inside in await folders(client)
    monkeypatch.undo()
    assert (await turn(client, inside, user_message("hi")))["stopReason"] == "end_turn"


async def test_nobody_else_waits_for_the_folder_of_a_program_that_does_not_answer(
    tmp_path: Path, hung: WatchedFolder, clock: ManualClock
) -> None:
    program = hung.path / "cli"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    config = gateway_config(tmp_path)
    for name in ("cli", "missing"):
        config["agents"][name] = {"driver": "claude", "program": str(hung.path / name)}
    async with run_gateway(config, clock) as running:
        client, discovery = running.client, running.gateway.discovery
        # The start of the daemon looks for the programs in the event loop.
        hung.on_loop.clear()
        await expect_error(client.post(SESSIONS, json={"agent": {"name": "nobody"}}), 400)
        before = (await client.get("/v1/drivers")).json()
        hung.hang()
        for path in ("/v1/drivers", "/meta", "/v1/drivers"):
            listing = asyncio.ensure_future(client.get(path))
            if not discovery.looks.late:
                await clock.waited_for(LIST_TIMEOUT)
                for ready in ("/healthz", "/readyz"):
                    assert (await client.get(ready)).status_code == 200
                await create(client, "script", "scene.json")
                await clock.advance(LIST_TIMEOUT)
            assert (await listing).status_code == 200
        # What was found before counts, and one thread waits for each program.
        assert (await client.get("/v1/drivers")).json() == before
        assert hung.blocked == 2
        await expect_error(client.post(SESSIONS, json={"agent": {"name": "nobody"}}), 400)
        program.unlink()
        hung.answer()
        await asyncio.gather(*discovery.looks.tasks.values())
        states = [agent for driver in (await client.get("/v1/drivers")).json()["drivers"] for agent in driver["agents"]]
        assert next(agent["installed"] for agent in states if agent["name"] == "cli") is False
        assert hung.on_loop == []


async def test_lists_do_not_wait_twice_for_a_folder(running: RunningGateway, hung: WatchedFolder, clock: ManualClock) -> None:
    inside, _ = await both(running.client)
    hung.hang()
    await clock.expire_until(folders(running.client), LIST_TIMEOUT)
    for _ in range(5):
        assert (await folders(running.client))[inside] == str(hung.path)
    # One thread waits, that of the first list.
    assert hung.blocked == 1
    hung.answer()
    await asyncio.gather(*running.gateway.sessions.listed_folders.accesses.tasks.values())
    assert (await folders(running.client))[inside] == str(hung.path)


async def test_the_files_that_a_driver_reads_do_not_block_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(cli_driver, "FILES_SECONDS", 0.2)
    monkeypatch.setattr(ScriptDriver, "session", lambda self, spec: answers.wait(60))
    spec = SessionSpec("", tmp_path, {})
    try:
        with pytest.raises(AgentUnavailable, match=r"has not answered within 0\.2 s"):
            await ScriptDriver().open(spec, Spawner(), Limits())
    finally:
        answers.set()
