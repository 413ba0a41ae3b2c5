"""Daemons in processes of their own: one is killed, another one stopped for longer than its leases last."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from gateway.app import INSTANCE_ID
from tests.conftest import write_config
from tests.gateway.nodes.two_nodes import ENCRYPTION_KEY
from tests.support import stores
from tests.support.daemon import Daemon, free_port, gateway_config
from tests.support.sse import arriving
from tests.support.waiting import SECONDS, wait_until

WriteScenario = Callable[..., str]


@asynccontextmanager
async def daemons(folder: Path, *names: str) -> AsyncIterator[list[Daemon]]:
    """Start nodes with one store, whose agents have the scenarios of the folder."""
    with stores.use("postgresql"):
        store = {"url": stores.store_url(folder)}
    found = []
    try:
        for name in names:
            (folder / name).mkdir()
            scenes = {"script": {"driver": "script", "cwd": str(folder / "scenes")}}
            port = free_port()
            node = {"address": f"http://127.0.0.1:{port}"}
            server = {"data_dir": str(folder / name / "data"), "port": port}
            config = gateway_config(folder, store=store, node=node, server=server, agents=scenes)
            daemon = Daemon(
                write_config(folder / name, config),
                folder / name,
                {"PORTICO_NODE_KEYS": "n" * 32, "PORTICO_ENCRYPTION_KEY": ENCRYPTION_KEY},
            )
            found.append(await daemon.start())
        yield found
    finally:
        for daemon in found:
            if daemon.process is not None and daemon.process.returncode is None:
                os.kill(daemon.pid, signal.SIGCONT)
                await daemon.stop()


def silence(folder: Path, name: str) -> None:
    """Let a node, which is killed or stopped, have had no heartbeat for a minute. Its leases expire."""
    node = {"node": (folder / name / "data" / INSTANCE_ID).read_text().strip()}
    with stores.use("postgresql"):
        assert stores.sql(folder, "UPDATE nodes SET heartbeat_at = heartbeat_at - 60 WHERE id = :node RETURNING id", node)
        stores.sql(folder, "UPDATE leases SET expires_at = 1 WHERE node = :node AND expires_at > 0", node)


async def begin(client: httpx.AsyncClient, scenario: str) -> str:
    """Begin a turn in a new session, and return the session's id once the agent has said something."""
    agent = {"name": "script", "options": {"scenario": scenario}}
    session = (await client.post("/aap/v3/sessions", json={"agent": agent})).json()["sessionId"]
    body = {"messages": [{"role": "user", "content": "hello"}], "stream": "delta"}
    async with client.stream("POST", f"/aap/v3/sessions/{session}/turns", json=body) as answer:
        async for line in answer.aiter_lines():
            if "working" in line:
                return str(session)
    raise AssertionError("the agent has said nothing")


async def follow(client: httpx.AsyncClient, session: str, begun: asyncio.Event) -> list[tuple[int, str]]:
    """The events of a session's log with their numbers, from the first to the end of a run. `begun` is set at the first.

    As clients do, it connects again where the connection ends, or while nobody has the session, and goes on from its last event.
    """
    found: list[tuple[int, str]] = []
    while not found or json.loads(found[-1][1]).get("kind") != "session_end":
        with suppress(httpx.TransportError):
            await _follow(client, session, begun, found)
        await asyncio.sleep(0.1)
    return found


async def _follow(client: httpx.AsyncClient, session: str, begun: asyncio.Event, found: list[tuple[int, str]]) -> None:
    headers, number = {"Accept": "text/event-stream"}, found[-1][0] if found else 0
    async with client.stream("GET", f"/aap/v3/sessions/{session}/log", params={"after": number}, headers=headers) as answer:
        assert answer.status_code in (200, 503), await answer.aread()
        async for event in arriving(answer):
            found.append((int(event.id), event.data))
            begun.set()
            if event.json().get("kind") == "session_end":
                return


@pytest.mark.slow
async def test_a_node_that_was_stopped_and_goes_on_writes_nothing(tmp_path: Path, write_scenario: WriteScenario) -> None:
    steps = [{"text": "working"}, {"wait_for_file": "go"}, {"text": "too late"}]
    scenario = write_scenario({"when": "hello", "steps": steps})
    async with daemons(tmp_path, "a", "b") as (a, b), a.client() as at_a, b.client() as at_b:
        session = await begin(at_a, scenario)
        begun = asyncio.Event()
        following = asyncio.create_task(follow(at_b, session, begun))
        await begun.wait()
        os.kill(a.pid, signal.SIGSTOP)
        silence(tmp_path, "a")
        async with asyncio.timeout(SECONDS):
            events = await following
        (tmp_path / "scenes" / "go").touch()
        os.kill(a.pid, signal.SIGCONT)
        log = tmp_path / "a" / "daemon.log"
        await wait_until(lambda: "lost" in log.read_text(), "the node reports that it has lost its lease")
        page = (await at_b.get(f"/aap/v3/sessions/{session}/log", params={"after": 0, "limit": 5000})).json()
        assert [event["id"] for event in page["events"]] == [number for number, _ in events]
        assert "too late" not in json.dumps(page)
        assert (await at_a.get(f"/aap/v3/sessions/{session}/log", params={"after": 0, "limit": 5000})).json() == page


@pytest.mark.slow
@pytest.mark.long
async def test_queued_message_of_a_killed_node_begins_on_another_one(tmp_path: Path, write_scenario: WriteScenario) -> None:
    steps = [{"text": "working"}, {"hang": True}]
    scenario = write_scenario({"when": "hello", "steps": steps}, [{"text": "[{prompt}]"}])
    async with daemons(tmp_path, "a", "b") as (a, b), a.client() as at_a, b.client() as at_b:
        session = await begin(at_a, scenario)
        body = {"messages": [{"role": "user", "content": "queued"}]}
        # By way of the other node, which forwards it to the owner.
        assert (await at_b.post(f"/aap/v3/sessions/{session}/queue", json=body)).status_code == 201
        await a.kill()
        silence(tmp_path, "a")

        async def answered() -> bool:
            # The list is read from the store: a request for the session itself would load it.
            listed = (await at_b.get("/aap/v3/sessions")).json()["sessions"]
            own = next(one["x-portico"] for one in listed if one["sessionId"] == session)
            return (own["state"], own["queued"], own.get("stopReason")) == ("idle", 0, "end_turn")

        await wait_until(answered)
        history = (await at_b.get(f"/aap/v3/sessions/{session}/history?type=full")).json()["history"]["full"]
        assert [one["content"] for one in history[-2:]] == ["queued", "[queued]"]
