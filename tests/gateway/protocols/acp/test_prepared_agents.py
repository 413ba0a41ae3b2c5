"""Agents that are started when a client opens a session, ahead of its first prompt."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from drivers.runtime import process_tree
from gateway.protocols.acp import connection
from gateway.protocols.acp.requests import Requests
from gateway.security.authentication import ADMINISTRATOR
from gateway.sessions.session import Session
from tests.gateway.cli.test_acp import small_agent
from tests.support.acp_client import RpcFailed, connect, connected, load, prompt
from tests.support.cluster import leave_out, placement
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import is_alive, read_pid
from tests.support.waiting import wait_until

REMEMBER = [{"steps": [{"remember": True}]}]
"""The turn of an agent that says what it has been prompted with before."""
SLOW_START = [{"spawn": {"seconds": 300, "pid_file": "started", "new_session": True}}, {"wait_for_file": "go"}]
"""An agent that writes the id of a process that it has started, and takes no prompt until the file `go` is there."""


@asynccontextmanager
async def serving(tmp_path: Path, *, start: list[Any] | None = None, **limits: Any) -> AsyncIterator[RunningGateway]:
    """Run a gateway whose agent `script` plays these steps when it starts."""
    scenes = tmp_path / "scenes"
    scenes.mkdir()
    (scenes / "default.json").write_text(json.dumps({"start": start or [], "turns": REMEMBER}))
    agent = {"driver": "script", "cwd": str(scenes), "options": {"scenario": "default.json"}}
    async with run_gateway(gateway_config(tmp_path, agents={"script": agent}, limits=limits)) as portico:
        yield portico


async def processes(portico: RunningGateway) -> list[tuple[str, int, float]]:
    return await portico.gateway.store.processes.all()


async def found(portico: RunningGateway, session: str) -> Session:
    return await portico.gateway.sessions.get(ADMINISTRATOR, session)


async def ready(portico: RunningGateway, session: str) -> Any:
    """Wait until the session has an agent, and return it."""
    held = await found(portico, session)
    return await wait_until(lambda: held.live)


async def started(tmp_path: Path) -> int:
    """Wait until an agent starts, and return the id of the process that it has started. The next one can be waited for."""
    file = tmp_path / "scenes" / "started"
    pid = await read_pid(file)
    file.unlink()
    return pid


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings and errors in the log, without those about other processes of this machine that cannot be examined."""
    logged = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [record.getMessage() for record in logged if record.name != process_tree.__name__]


def let_it_start(tmp_path: Path) -> None:
    (tmp_path / "scenes" / "go").touch()


async def test_agent_of_a_new_session_is_started_before_its_first_prompt(tmp_path: Path) -> None:
    async with serving(tmp_path) as portico, connected(portico.gateway) as client:
        session = await client.new()
        agent = await ready(portico, session)
        warm = await processes(portico)
        await client.prompt(session, "one")
        await client.prompt(session, "two")
        assert client.text(session) == '[]["one"]'
        assert (await found(portico, session)).live is agent
        assert len(warm) == 1 and await processes(portico) == warm


async def test_agent_of_the_first_session_starts_before_the_handlers_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_import, import_requests = threading.Event(), connection._import_requests

    def import_later() -> type[Requests]:
        assert may_import.wait(60)
        return import_requests()

    monkeypatch.setattr(connection, "_import_requests", import_later)
    monkeypatch.setattr(connection, "HANDLERS", "not.imported")
    async with serving(tmp_path) as portico, connected(portico.gateway) as client:
        creating = asyncio.create_task(client.new())
        try:
            (held,) = await wait_until(lambda: portico.gateway.sessions.held)
            agent = await wait_until(lambda: held.live)
            assert not creating.done()
        finally:
            may_import.set()
        session = await creating
        await client.prompt(session, "one")
        assert held.id == session and held.live is agent


async def test_first_sessions_that_are_refused_and_concurrent_ones_do_not_stop_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HANDLERS", "not.imported")
    async with serving(tmp_path) as portico:
        client, served = connect(portico.gateway, "script")
        with pytest.raises(RpcFailed, match="before initialize"):
            await client.new()
        await client.initialize()
        for params in ({"mcpServers": []}, {"cwd": "/", "mcpServers": [], "additionalDirectories": [1]}):
            with pytest.raises(RpcFailed) as refused:
                await client.request("session/new", params)
            assert refused.value.code == -32602
        first, second = await asyncio.gather(client.new(), client.new())
        await asyncio.gather(client.prompt(first, "one"), client.prompt(second, "two"))
        assert client.text(first) == client.text(second) == "[]"
        await served.close()


async def test_agent_of_a_session_that_is_opened_again_is_started_with_its_history(tmp_path: Path) -> None:
    async with serving(tmp_path) as portico:
        for method in ("session/load", "session/resume", "session/fork"):
            async with connected(portico.gateway) as client:
                session = await client.new()
                await client.prompt(session, "one")
                await client.request("session/close", {"sessionId": session})
                assert (await found(portico, session)).live is None, method
            async with connected(portico.gateway) as client:
                session = (await client.request(method, load(session))).get("sessionId", session)
                agent = await ready(portico, session)
                before = len(client.received)
                await client.prompt(session, "two")
                assert client.text(session, since=before) == '["one"]', method
                assert (await found(portico, session)).live is agent, method


async def test_prompt_waits_for_the_agent_that_is_being_started(tmp_path: Path) -> None:
    async with serving(tmp_path, start=SLOW_START) as portico, connected(portico.gateway) as client:
        session = await client.new()
        pid = await started(tmp_path)
        answer = await client.begin("session/prompt", prompt(session, "one"))
        held = await found(portico, session)
        await wait_until(lambda: held.lock.locked())
        let_it_start(tmp_path)
        assert (await answer)["stopReason"] == "end_turn"
        assert is_alive(pid) and not (tmp_path / "scenes" / "started").exists(), "one process was started"


async def test_cancelled_prompt_leaves_the_agent_that_is_being_started(tmp_path: Path) -> None:
    async with serving(tmp_path, start=SLOW_START) as portico, connected(portico.gateway) as client:
        session = await client.new()
        pid = await started(tmp_path)
        answer = await client.begin("session/prompt", prompt(session, "one"))
        held = await found(portico, session)
        await wait_until(lambda: held.lock.locked())
        await client.notify("session/cancel", {"sessionId": session})
        assert (await answer)["stopReason"] == "cancelled"
        let_it_start(tmp_path)
        await client.prompt(session, "two")
        assert is_alive(pid) and not (tmp_path / "scenes" / "started").exists(), "one process was started"
        assert client.text(session) == "[]", "the cancelled prompt was not given"


async def test_option_that_is_changed_while_the_agent_starts_replaces_it(tmp_path: Path) -> None:
    async with serving(tmp_path, start=SLOW_START) as portico, connected(portico.gateway) as client:
        session = await client.new()
        first = await started(tmp_path)
        # It is answered although the agent does not start.
        await client.request("session/set_config_option", {"sessionId": session, "configId": "pace", "value": "fast"})
        second = await started(tmp_path)
        assert not is_alive(first)
        let_it_start(tmp_path)
        await client.prompt(session, "one")
        assert is_alive(second) and not (tmp_path / "scenes" / "started").exists(), "the second agent has got the prompt"
        assert len(await processes(portico)) == 1


async def test_settings_that_another_client_changes_while_the_agent_starts_count(tmp_path: Path) -> None:
    async with serving(tmp_path, start=SLOW_START) as portico, connected(portico.gateway) as client:
        session = await client.new()
        first = await started(tmp_path)
        turn = {"messages": [{"role": "user", "content": "one"}], "agent": {"options": {"pace": "fast"}}}
        answer = asyncio.create_task(portico.client.post(f"/session/{session}", json=turn))
        second = await started(tmp_path)
        assert not is_alive(first)
        let_it_start(tmp_path)
        assert (await answer).json()["stopReason"] == "end_turn"
        assert is_alive(second) and len(await processes(portico)) == 1


async def test_agent_that_is_being_started_ends_with_its_session(tmp_path: Path) -> None:
    async with serving(tmp_path, start=SLOW_START) as portico, connected(portico.gateway) as client:
        for method in ("session/close", "session/delete"):
            session = await client.new()
            pid = await started(tmp_path)
            await client.request(method, {"sessionId": session})
            await wait_until(lambda pid=pid: not is_alive(pid))
            assert await processes(portico) == [], method
            assert portico.gateway.sessions.held == [], method


async def test_shutdown_ends_an_agent_that_is_being_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path, start=SLOW_START) as portico, connected(portico.gateway) as client:
        await client.new()
        pid = await started(tmp_path)
        await portico.gateway.stop_runs()
        assert not is_alive(pid)
    assert warnings(caplog) == []


async def test_agent_stays_when_its_client_leaves(tmp_path: Path) -> None:
    async with serving(tmp_path, start=SLOW_START) as portico:
        async with connected(portico.gateway) as client:
            session = await client.new()
            await started(tmp_path)
        let_it_start(tmp_path)
        agent = await ready(portico, session)
        async with connected(portico.gateway) as client:
            await client.request("session/resume", load(session))
            await client.prompt(session, "one")
            assert (await found(portico, session)).live is agent


async def test_unused_agent_is_ended_when_idle_and_its_empty_native_session_is_not_resumed(tmp_path: Path) -> None:
    agents = {"small": small_agent(tmp_path)}
    config = gateway_config(tmp_path, agents=agents, limits={"sleep_after": 0.05})
    async with run_gateway(config) as portico, connected(portico.gateway, "small") as client:

        async def native_id() -> str | None:
            record = await portico.gateway.store.sessions.get(session)
            assert record is not None
            return record.native_id

        session = await client.new()
        agent = await ready(portico, session)
        held = await found(portico, session)
        await wait_until(lambda: held.only_stored)
        assert (agent.alive, await processes(portico), await native_id()) == (False, [], None)
        await client.prompt(session, "one")
        await wait_until(native_id)


async def test_agent_that_cannot_start_is_an_error_of_the_prompt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start = [{"wait_for_file": "go"}, {"stderr": "no license"}, {"exit": 3}]
    async with serving(tmp_path, start=start) as portico, connected(portico.gateway) as client:
        session = await client.new()
        held = await found(portico, session)
        waiting = await client.begin("session/prompt", prompt(session, "one"))
        await wait_until(lambda: held.lock.locked())
        let_it_start(tmp_path)
        with pytest.raises(RpcFailed, match=r"cannot start: .*no license"):
            await waiting
        with pytest.raises(RpcFailed, match=r"cannot start: .*no license"):
            await client.prompt(session, "two")
        assert held.only_stored and await processes(portico) == []
        (tmp_path / "scenes" / "default.json").write_text(json.dumps({"turns": REMEMBER}))
        await client.prompt(session, "three")
        assert client.text(session) == "[]"
    assert warnings(caplog) == []


async def test_no_other_agent_is_ended_for_one_that_has_no_prompt(tmp_path: Path) -> None:
    async with serving(tmp_path, live_agents=1) as portico, connected(portico.gateway) as client:
        first = await client.new()
        agent = await ready(portico, first)
        second = await client.new()
        other = await found(portico, second)
        await other.prepare()
        assert other.live is None
        held = await found(portico, first)
        assert held.live is agent and agent.alive
        # A prompt ends it, as before, in the background.
        await client.prompt(second, "one")
        await wait_until(lambda: held.live is None)


async def test_agent_that_is_being_started_makes_way_for_a_prompt(tmp_path: Path) -> None:
    if placement():
        leave_out("fills limits.live_agents, which is a limit of each node")
    async with serving(tmp_path, start=SLOW_START, live_agents=1) as portico, connected(portico.gateway) as client:
        await client.new()
        pid = await started(tmp_path)
        async with connected(portico.gateway, "echo") as other:
            assert (await other.prompt(await other.new(), "one"))["stopReason"] == "end_turn"
        await wait_until(lambda: not is_alive(pid))


async def test_commands_are_announced_before_the_first_prompt(tmp_path: Path) -> None:
    commands = [{"name": "deploy", "description": "Deploys the project.", "hint": "where"}]
    async with serving(tmp_path, start=[{"commands": commands}]) as portico, connected(portico.gateway) as client:
        session = await client.new()

        def announced(_: Any) -> list[Any]:
            return [update for update in client.updates(session) if update["sessionUpdate"] == "available_commands_update"]

        [update] = await client.until(announced)
        [command] = update["availableCommands"]
        assert (command["name"], command["input"]["hint"]) == ("deploy", "where")
        await client.prompt(session, "one")
        assert len(announced(None)) == 1, "the first run reports no change"
