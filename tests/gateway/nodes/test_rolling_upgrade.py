"""Nodes of two versions over one store: the newer one migrates it while the older one works, and the older one may come back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.store import schema
from tests import stores
from tests.conftest import write_config
from tests.daemon import Daemon, gateway_config
from tests.gateway.nodes.two_nodes import ENCRYPTION_KEY
from tests.next_version import COLUMN, LAST, NEXT, make_last, make_next
from tests.waiting import wait_until

WriteScenario = Callable[..., str]


class Nodes:
    """Nodes in processes of their own, by name, with one store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._daemons = folder, dict[str, Daemon]()

    async def start(self, name: str, source: Path | None = None) -> Daemon:
        """Start a node, or start it again, of this version or of that of another source tree. Raises RuntimeError."""
        if name not in self._daemons:
            self._daemons[name] = self._new(name)
        daemon = self._daemons[name]
        daemon.source = source
        return await daemon.start()

    def _new(self, name: str) -> Daemon:
        (self.folder / name).mkdir()
        with stores.use("postgresql"):
            store = {"url": stores.store_url(self.folder)}
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        agents = {"script": {"driver": "script", "cwd": str(self.folder / "scenes")}}
        server = {"data_dir": str(self.folder / name / "data"), "port": port}
        node = {"address": f"http://127.0.0.1:{port}"}
        config = gateway_config(self.folder, store=store, node=node, server=server, agents=agents)
        env = {"PORTICO_NODE_KEYS": "n" * 32, "PORTICO_ENCRYPTION_KEY": ENCRYPTION_KEY}
        return Daemon(write_config(self.folder / name, config), self.folder / name, env)

    async def close(self) -> None:
        for daemon in self._daemons.values():
            if daemon.process is not None and daemon.process.returncode is None:
                await daemon.stop()


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Nodes]:
    """Nodes that are stopped at the end."""
    nodes = Nodes(folder)
    try:
        yield nodes
    finally:
        await nodes.close()


def sql(folder: Path, statement: str) -> list[tuple[Any, ...]]:
    with stores.use("postgresql"):
        return stores.sql(folder, statement)


async def create(client: httpx.AsyncClient, scenario: str) -> str:
    answer = await client.post("/aap/v3/sessions", json={"agent": {"name": "script", "options": {"scenario": scenario}}})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["sessionId"])


async def turn(client: httpx.AsyncClient, session: str, text: str, begun: asyncio.Event | None = None) -> str:
    """What a turn answers. `begun` is set at its first text."""
    said, body = "", {"messages": [{"role": "user", "content": text}], "stream": "delta"}
    async with client.stream("POST", f"/aap/v3/sessions/{session}/turns", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and "delta" in (data := json.loads(line[6:])):
                said += data["delta"]
                if begun is not None:
                    begun.set()
    return said


async def follow(client: httpx.AsyncClient, session: str, ends: int) -> list[tuple[int, str]]:
    """The kinds of the events of a log with their numbers, from the first to the end of so many runs."""
    found: list[tuple[int, str]] = []
    headers, query = {"Accept": "text/event-stream"}, {"after": 0}
    async with client.stream("GET", f"/aap/v3/sessions/{session}/log", params=query, headers=headers) as answer:
        number = 0
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                number = int(line[4:])
            elif line.startswith("data: "):
                found.append((number, json.loads(line[6:])["kind"]))
                if [kind for _, kind in found].count("session_end") == ends:
                    return found
    raise AssertionError("the stream has ended")


async def nodes_of(client: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    """The nodes that a client sees, by their addresses."""
    return {node["address"]: node for node in (await client.get("/v1/nodes")).json()["nodes"]}


async def drained(client: httpx.AsyncClient, daemon: Daemon) -> None:
    """Drain a node, wait until it has no sessions, and stop it."""
    node = (await nodes_of(client))[daemon.url]["id"]
    assert (await client.post(f"/v1/nodes/{node}/drain")).status_code == 200

    async def is_free() -> bool:
        return not (await nodes_of(client))[daemon.url]["sessions"]

    await wait_until(is_free)
    assert await daemon.stop() == 0


@pytest.mark.long
@pytest.mark.slow
async def test_nodes_are_upgraded_and_downgraded_one_after_the_other(tmp_path: Path, write_scenario: WriteScenario) -> None:
    source = await asyncio.to_thread(make_next, tmp_path / "next")
    long = [{"text": "at work "}, {"wait_for_file": "go"}, {"text": "over"}]
    scenario = write_scenario({"when": "long", "steps": long}, {"when": "hello", "steps": [{"text": "hello"}]})
    async with running(tmp_path) as nodes:
        a, b = await asyncio.gather(nodes.start("a"), nodes.start("b"))
        async with a.client() as at_a, b.client() as at_b:
            session, begun = await create(at_a, scenario), asyncio.Event()
            at_work = asyncio.create_task(turn(at_a, session, "long", begun))
            following = asyncio.create_task(follow(at_b, session, 1))
            await begun.wait()
            # The migration does not wait for the turn, nor the turn for the migration.
            c = await nodes.start("c", source)
            async with c.client() as at_c:
                assert sql(tmp_path, "SELECT version, compatible_from FROM schema_version") == [(NEXT, 10)]
                assert {node["storeVersion"] for node in (await nodes_of(at_a)).values()} == {schema.VERSION, NEXT}
                other = await create(at_c, scenario)
                assert [await turn(client, other, "hello") for client in (at_a, at_b, at_c)] == ["hello"] * 3
                (tmp_path / "scenes" / "go").touch()
                assert await at_work == "at work over"
                events = await following
                assert [number for number, _ in events] == list(range(1, len(events) + 1))
                await drained(at_c, a)
                await drained(at_c, b)
                assert await turn(at_c, session, "hello") == "hello", "the session goes on at the only node"
                # Back to the older version, while the newer one runs.
                a = await nodes.start("a")
                await drained(at_c, c)
        async with a.client() as at_a:
            assert await turn(at_a, session, "hello") == "hello"
            events = await follow(at_a, session, 3)
            assert [number for number, _ in events] == list(range(1, len(events) + 1))
            assert [kind for _, kind in events].count("turn_start") == 3
        rows = sql(tmp_path, f"SELECT {COLUMN} FROM events WHERE log_id = '{session}' ORDER BY first")
        by = [version for n, (version,) in enumerate(rows) if n == 0 or rows[n - 1] != (version,)]
        assert by == [None, NEXT, None], "the rows of the older program have no value in the new column"
        assert "cached plan" not in "".join((tmp_path / name / "daemon.log").read_text() for name in "abc")


@pytest.mark.long
@pytest.mark.slow
async def test_a_node_waits_with_a_migration_that_others_could_not_go_on_with(tmp_path: Path) -> None:
    source = await asyncio.to_thread(make_last, tmp_path / "last")
    async with running(tmp_path) as nodes:
        a, b = await asyncio.gather(nodes.start("a"), nodes.start("b"))
        async with a.client() as client:
            ids = {address: node["id"] for address, node in (await nodes_of(client)).items()}
            with pytest.raises(RuntimeError, match=f"not to be migrated to {LAST} while programs use it") as refused:
                await nodes.start("c", source)
            assert all(node_id in str(refused.value) for node_id in ids.values())
            assert "Traceback" not in str(refused.value)
            assert sql(tmp_path, "SELECT version FROM schema_version") == [(schema.VERSION,)], "nothing has changed"
            await drained(client, b)
            # One that is stopped without a heartbeat may wake up and go on: it is connected still.
            os.kill(a.pid, signal.SIGSTOP)
            sql(tmp_path, "UPDATE nodes SET heartbeat_at = heartbeat_at - 60")
            try:
                with pytest.raises(RuntimeError, match=ids[a.url]):
                    await nodes.start("c", source)
            finally:
                os.kill(a.pid, signal.SIGCONT)
            assert (await client.get("/readyz")).status_code == 200
        await a.stop()
        await nodes.start("c", source)
        assert sql(tmp_path, "SELECT version, compatible_from FROM schema_version") == [(LAST, LAST)]
        with pytest.raises(RuntimeError, match=f"for a Portico that reads {LAST} or newer; this one reads {schema.VERSION}"):
            await nodes.start("a")


@pytest.mark.slow
async def test_a_node_that_finds_the_store_migrated_beyond_it_ends(tmp_path: Path) -> None:
    async with running(tmp_path) as nodes:
        a = await nodes.start("a")
        sql(tmp_path, f"UPDATE schema_version SET version = {LAST}, compatible_from = {LAST}")
        assert a.process is not None
        async with asyncio.timeout(20):
            assert await a.process.wait() == 1
        log = (tmp_path / "a" / "daemon.log").read_text()
        assert f"this node ends: the store is of version {LAST}" in log and "Traceback" not in log
