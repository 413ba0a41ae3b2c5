"""A shutdown ends every run for its client, and every agent, whatever fails meanwhile, within `limits.grace` + 2 seconds."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.runs.run import CLOSE_TIMEOUT
from gateway.security.authentication import ADMINISTRATOR
from tests.conftest import write_config
from tests.support.daemon import Daemon, RunningGateway, gateway_config
from tests.support.faulty_store import run_faulty_gateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import create_session, is_alive, read_pid, send_turn, session_body
from tests.support.sse import parse_frames, parse_output_events
from tests.support.waiting import wait_until

GRACE = 0.1
PROCESSES = ("streamed", "whole", "task")


def working_agents(folder: Path) -> dict[str, Any]:
    """Return the tables of three agents that do not end by themselves. Each writes a process id into the file of its name."""
    (folder / "scenes").mkdir(exist_ok=True)
    agents = {}
    for name in PROCESSES:
        steps = [{"text": "begun"}, {"spawn": {"seconds": 300, "pid_file": name}}, {"hang": True}]
        (folder / "scenes" / f"{name}.json").write_text(json.dumps({"turns": [{"steps": steps}]}))
        agents[name] = {"driver": "script", "cwd": str(folder / "scenes"), "options": {"scenario": f"{name}.json"}}
    return agents


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the write lock of the daemon's database."""
    with closing(sqlite3.connect(folder / "data" / "portico.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


class Clients:
    """Three clients of runs that do not end by themselves: a stream, a JSON response, and a task."""

    def __init__(self, client: httpx.AsyncClient, folder: Path) -> None:
        self._folder = folder
        self._requests = [
            asyncio.create_task(client.put("/session", json=session_body("streamed", "hello", stream="delta"))),
            asyncio.create_task(client.put("/session", json=session_body("whole", "hello"))),
            asyncio.create_task(client.post("/v1/execute", json={"driver": "task", "task": "hello"})),
        ]

    async def begun(self) -> list[int]:
        """Wait until the runs are at work, and return the ids of processes of their agents."""
        return [await read_pid(self._folder / "scenes" / name) for name in PROCESSES]

    async def assert_ended(self) -> str:
        """Assert that each client gets the end of its run, and return the id of the streamed session."""
        streamed, whole, task = await asyncio.gather(*self._requests)
        events = parse_frames(streamed.text)
        assert [event for event, _ in events] == ["session_start", "turn_start", "text_delta", "turn_stop"]
        assert events[-1][1]["stopReason"] == "error"
        assert "shut down" in events[-1][1]["x-portico"]["error"]
        assert (whole.status_code, whole.json()["stopReason"]) == (201, "error")
        assert [frame["kind"] for frame in parse_output_events(task.text)][-1] == "session_end"
        return str(events[0][1]["sessionId"])


async def shut_down(portico: RunningGateway, clock: ManualClock) -> None:
    """Stop the runs of the gateway, and assert that it is quick."""
    began = clock.monotonic()
    await asyncio.wait_for(clock.outlast(portico.gateway.stop_runs(), 0.1), 60)
    assert clock.monotonic() - began <= GRACE + 2.0


async def assert_gone(pids: list[int]) -> None:
    """Assert that the processes end."""
    await wait_until(lambda: not any(map(is_alive, pids)))


async def test_clients_get_the_end_of_their_runs_when_nothing_can_be_stored(tmp_path: Path, clock: ManualClock) -> None:
    config = gateway_config(tmp_path, agents=working_agents(tmp_path), limits={"grace": GRACE})
    async with run_faulty_gateway(config, clock) as (portico, faults):
        clients = Clients(portico.client, tmp_path)
        pids = await clients.begun()
        faults.fail("*")
        await shut_down(portico, clock)
        await clients.assert_ended()
        await assert_gone(pids)


async def test_failed_end_of_one_agent_does_not_affect_the_others(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = gateway_config(tmp_path, agents=working_agents(tmp_path), limits={"grace": GRACE})
    async with run_faulty_gateway(config, clock) as (portico, _):
        idle = await create_session(portico.client, "echo")
        clients = Clients(portico.client, tmp_path)
        pids = await clients.begun()
        session = await portico.gateway.sessions.get(ADMINISTRATOR, idle["sessionId"])
        assert session.live is not None
        close = session.live.close

        async def fail(grace: float | None = None) -> None:
            await close(grace)
            raise OSError("this agent cannot be closed")

        monkeypatch.setattr(session.live, "close", fail)
        await shut_down(portico, clock)
        await clients.assert_ended()
        await assert_gone(pids)


async def test_client_gets_the_end_of_a_run_whose_agent_cannot_be_ended(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = gateway_config(tmp_path, agents=working_agents(tmp_path), limits={"grace": GRACE})
    async with run_faulty_gateway(config, clock) as (portico, _):
        clients = Clients(portico.client, tmp_path)
        pids = await clients.begun()
        for session in portico.gateway.sessions.held:
            assert session.live is not None
            monkeypatch.setattr(session.live, "close", lambda _=None: asyncio.Event().wait())
        await shut_down(portico, clock)
        await clients.assert_ended()
        await assert_gone(pids[2:])
        monkeypatch.undo()
        held = portico.gateway.sessions.held
        closing = asyncio.gather(*(session.live.close() for session in held if session.live), return_exceptions=True)
        await clock.outlast(closing, 0.1)
        await assert_gone(pids)
        await clock.advance(CLOSE_TIMEOUT)
        await asyncio.gather(*(session.run.wait() for session in held if session.run), return_exceptions=True)
    # Their runs end after the store is closed: nothing tries to store what they report.
    assert not [task for task in asyncio.all_tasks() if "_until_stored" in repr(task.get_coro())]


async def test_connection_that_cannot_be_closed_does_not_keep_the_gateway_open(
    portico: RunningGateway, clock: ManualClock
) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    portico.gateway.close_last.append(never)
    await shut_down(portico, clock)


PATIENT = """
from gateway.store import sqlite
sqlite.PRAGMAS = (*sqlite.PRAGMAS, "busy_timeout=600000")
"""
"""A module that Python imports at its start: a write waits for a locked database for ten minutes, not for ten seconds."""


async def test_daemon_with_a_locked_store_exits_with_code_0(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(PATIENT)
    daemon.env, daemon.forked = {"PYTHONPATH": str(tmp_path)}, False
    write_config(tmp_path, gateway_config(tmp_path, agents=working_agents(tmp_path), limits={"grace": GRACE}))
    await daemon.start()
    async with daemon.client() as client:
        clients = Clients(client, tmp_path)
        pids = await clients.begun()
        with locked(tmp_path):
            # Within a minute, which is less than its store waits for the lock.
            assert await daemon.stop() == 0
            session = await clients.assert_ended()
    assert not any(map(is_alive, pids))
    daemon.env, daemon.forked = {}, True
    await daemon.start()
    async with daemon.client() as client:
        assert (await send_turn(client, session, "again", agent={"options": {"scenario": ""}}))["stopReason"] == "end_turn"
