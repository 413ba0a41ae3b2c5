"""Two daemons with one node id, as in a copy of a data directory: the second one is refused, and the first one goes on."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway import app as gateway_module
from gateway.errors import ConfigError
from gateway.store import Store
from gateway.store.backend import NodeIdTaken
from gateway.store.nodes import NodeReport
from tests.gateway.nodes.test_killed_daemons import WriteScenario, daemons
from tests.gateway.nodes.test_killed_daemons import begin as begin_turn
from tests.gateway.nodes.three_nodes import ClusterNode, begin, run_node, until
from tests.support import stores
from tests.support.acp_client import on_stdio
from tests.support.cluster import ENCRYPTION_KEY
from tests.support.daemon import free_port, gateway_config
from tests.support.waiting import wait_until


@asynccontextmanager
async def heartbeats(node: ClusterNode) -> AsyncIterator[None]:
    """Let a node send heartbeats inside, often enough to be seen at each look at the database."""

    async def beat() -> None:
        while True:
            await node.node.beat()
            await asyncio.sleep(0.02)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.wait([beating])


def copy_id(source: Path, target: Path) -> None:
    target.mkdir(mode=0o700, parents=True)
    shutil.copy(source / "instance-id", target)


async def test_the_second_one_ends_no_process_and_takes_nothing_over(
    tmp_path: Path, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = write_scenario({"when": "hello", "steps": [{"text": "working"}, {"wait_for_file": "go"}, {"text": " over"}]})
    async with run_node(tmp_path, "a") as a, heartbeats(a):
        session = await a.create("script", scenario=scenario)
        turn = await begin(session)
        await until(turn, "working")
        copy_id(tmp_path / "a", tmp_path / "copy")
        ended = list[Any]()

        async def end_left_behind(*args: Any, **_: Any) -> list[str]:
            ended.append(args)
            return []

        monkeypatch.setattr(gateway_module, "end_left_behind", end_left_behind)
        with pytest.raises(ConfigError) as refused:
            async with run_node(tmp_path, "copy"):
                pass
        assert f"a daemon with the id of this node runs already: {a.id}, at http://a:7700. " in str(refused.value)
        assert f"if {tmp_path / 'copy'} is a copy" in str(refused.value)
        assert f"remove {tmp_path / 'copy' / 'instance-id'}; else stop that daemon first" in str(refused.value)
        assert not ended
        assert [record.report.address for record in await a.gateway.store.nodes.all()] == ["http://a:7700"]
        lease = a.node.leases.get(session.id)
        assert lease is not None and lease.held
        (tmp_path / "scenes" / "go").touch()
        await until(turn, "over")
        # As the error says.
        (tmp_path / "copy" / "instance-id").unlink()
        async with run_node(tmp_path, "copy"):
            assert len(await a.gateway.store.nodes.all()) == 2


async def test_a_node_whose_id_another_daemon_has_got_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with run_node(tmp_path, "a") as a:
        ended = list[None]()
        a.gateway.on_end_for_good.append(lambda: ended.append(None))
        with stores.use("postgresql"):
            # It has sent no heartbeat since its start.
            other = await Store.open_as_node(stores.store_url(tmp_path), a.id, 0.1)
        await other.nodes.start(NodeReport(id=a.id, address="http://other:7700"), 100.0)
        with pytest.raises(NodeIdTaken):
            await a.node.beat()
        assert ended == [None] and a.gateway.store.abandoned
        assert f"this node ends: the store cannot be written: another daemon has the id of this node, {a.id}" in caplog.text
    assert [record.report.address for record in await other.nodes.all()] == ["http://other:7700"], "its row is the other one's"
    await other.close()


@pytest.mark.slow
async def test_a_killed_node_starts_again_at_once_with_its_runs_closed(tmp_path: Path, write_scenario: WriteScenario) -> None:
    scenario = write_scenario({"when": "hello", "steps": [{"text": "working"}, {"hang": True}]})
    async with daemons(tmp_path, "a") as (a,):
        async with a.client() as client:
            session = await begin_turn(client, scenario)
        await a.kill()
        # Its leases have not expired, and its last heartbeat is young.
        await a.start()
        assert "has sent no heartbeat" not in (tmp_path / "a" / "daemon.log").read_text(), "it has not waited for that"
        async with a.client() as client:
            assert (await client.get(f"/aap/v3/sessions/{session}")).json()["x-portico"]["state"] == "idle"


@pytest.mark.slow
async def test_a_stopped_node_ends_when_it_goes_on_after_its_id_was_taken(tmp_path: Path) -> None:
    async with daemons(tmp_path, "a") as (a,):
        assert a.process is not None
        node = (tmp_path / "a" / "data" / "instance-id").read_text().strip()
        os.kill(a.pid, signal.SIGSTOP)
        with stores.use("postgresql"):
            other = await Store.open_as_node(stores.store_url(tmp_path), node, 0.5)
        os.kill(a.pid, signal.SIGCONT)
        assert await asyncio.wait_for(a.process.wait(), 60) == 1
        log = (tmp_path / "a" / "daemon.log").read_text()
        await wait_until(lambda: "this node ends: the store cannot be written: another daemon has the id" in log, 1)
        await other.close()


@pytest.mark.slow
async def test_a_node_for_editors_ends_when_it_goes_on_after_its_id_was_taken(tmp_path: Path) -> None:
    with stores.use("postgresql"):
        store = {"url": stores.store_url(tmp_path)}
    settings = gateway_config(
        tmp_path, store=store, node={"address": f"http://127.0.0.1:{free_port()}"}, server={"linger": 3600.0}
    )
    environment = os.environ | {"PORTICO_NODE_KEYS": "n" * 32, "PORTICO_ENCRYPTION_KEY": ENCRYPTION_KEY}
    async with on_stdio(tmp_path, "echo", settings=settings, env=environment) as (client, _):
        await client.initialize()
        assert (await client.prompt(await client.new(), "hello"))["stopReason"] == "end_turn"
    data = tmp_path / "data"
    pid = json.loads((data / "acp-socket.json").read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)
    with stores.use("postgresql"):
        other = await Store.open_as_node(stores.store_url(tmp_path), (data / "instance-id").read_text().strip(), 0.5)
    os.kill(pid, signal.SIGCONT)
    await wait_until(lambda: not psutil.pid_exists(pid))
    assert "this node ends: the store cannot be written: another daemon has the id" in (data / "acp.log").read_text()
    await other.close()
