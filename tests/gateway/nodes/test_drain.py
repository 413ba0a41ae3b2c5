"""Draining a node, its shutdown, and the operations about nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from drivers.contract.events import SessionEnd
from gateway.app import Gateway
from gateway.config import parse
from gateway.errors import ConfigError, LeaseLost, SessionElsewhere
from gateway.observability.health import DRAINED
from gateway.security.authentication import request_is_forwarded
from gateway.security.redaction import Redactor
from gateway.store.times import StoreTimes
from tests.conftest import write_config
from tests.gateway.nodes.three_nodes import begin, create_waiting, permission, rest, run_node, run_nodes, say, until
from tests.gateway.nodes.two_nodes import ENCRYPTION_KEY, NODE_KEY
from tests.support import stores
from tests.support.daemon import Daemon, RunningGateway, gateway_config
from tests.support.portico_command import PorticoCommand
from tests.support.requests import expect_error
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]


async def test_a_drained_node_keeps_what_is_at_work_and_nothing_else(tmp_path: Path, write_scenario: WriteScenario) -> None:
    scenario = write_scenario([{"text": "working"}, {"wait_for_file": "go"}])
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        idle, busy = await a.create(), await a.create("script", scenario=scenario)
        waits = await create_waiting(a, write_scenario)
        await say(idle)
        turn = await begin(busy)
        await until(turn, "working")
        await b.gateway.store.nodes.drain(a.id)
        await a.node.beat()
        await a.node.daemon.tidy()
        await b.node.beat()
        assert [lease.log_id for lease in a.node.leases.all] == [busy.id]
        assert idle.live is None and waits.live is None and busy.live is not None
        assert await a.gateway.problems() == [DRAINED], "a load balancer sends it nothing new"
        assert await b.gateway.problems() == []
        with pytest.raises(SessionElsewhere):
            await a.create_anywhere()
        with pytest.raises(SessionElsewhere):
            await a.get(idle.id)
        await say(await b.get(idle.id), "on")
        taken = await b.get(waits.id)
        events = await rest(await taken.submit(permission()))
        assert isinstance(events[-1], SessionEnd) and events[-1].stop_reason == "end_turn"
        assert (await a.get(busy.id)) is busy, "it has its requests until it is over"
        (tmp_path / "scenes" / "go").touch()
        await rest(turn)
        await a.node.beat()
        await a.node.daemon.tidy()
        assert a.node.leases.all == []


async def test_the_next_turn_of_a_session_leaves_a_drained_node(tmp_path: Path, write_scenario: WriteScenario) -> None:
    """A client whose turns follow each other at once does not keep its session there until the node looks at it."""
    scenario = write_scenario([{"text": "working"}, {"wait_for_file": "go"}])
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session, waits = await a.create("script", scenario=scenario), await create_waiting(a, write_scenario)
        turn = await begin(session)
        await until(turn, "working")
        await b.gateway.store.nodes.drain(a.id)
        await a.node.beat()
        assert await a.get(session.id) is session, "it is at work"
        (tmp_path / "scenes" / "go").touch()
        await rest(turn)
        following = asyncio.create_task(session.log.read(session.log.last))
        await wait_until(lambda: session.log.is_followed)
        for found in (session, waits):
            with pytest.raises(SessionElsewhere) as elsewhere:
                await a.get(found.id)
            assert elsewhere.value.node_id == b.id and found.live is None
        assert a.node.leases.all == []
        await b.node.beat()
        assert await say(await b.get(session.id))
        with pytest.raises(LeaseLost):
            await following


async def test_a_drained_node_does_not_take_a_forwarded_request_of_a_session_that_it_has_released(tmp_path: Path) -> None:
    """The sender saw its lease right before that, or does not know that the node is drained."""
    async with run_nodes(tmp_path, "a", "b") as (a, b):
        session = await a.create()
        await b.gateway.store.nodes.drain(a.id)
        await a.node.beat()
        await a.node.daemon.tidy()
        token = request_is_forwarded.set(True)
        try:
            with pytest.raises(SessionElsewhere) as elsewhere:
                await a.get(session.id)
            assert elsewhere.value.node_id == b.id
            with pytest.raises(SessionElsewhere):
                await a.create()
        finally:
            request_is_forwarded.reset(token)
        b.clock.now += 1.0
        await b.node.directory.look_again()
        assert b.node.directory.choose("echo", None, a.id) == b.id
        await b.gateway.store.nodes.drain(b.id)
        await a.node.beat()
        token = request_is_forwarded.set(True)
        try:
            assert await a.get(session.id), "no other node takes it"
        finally:
            request_is_forwarded.reset(token)


async def test_a_node_that_has_just_started_is_found_by_those_that_do_not_know_it_yet(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a") as (a,), run_node(tmp_path, "b") as b:
        session = await b.create()
        a.clock.now += 1.0
        with pytest.raises(SessionElsewhere) as elsewhere:
            await a.get(session.id)
        assert elsewhere.value.node_id == b.id


async def test_a_shutdown_releases_the_leases_and_removes_the_node(tmp_path: Path, write_scenario: WriteScenario) -> None:
    scenario = write_scenario([{"text": "working"}, {"hang": True}])
    async with run_nodes(tmp_path, "b") as (b,):
        async with run_node(tmp_path, "a") as a:
            idle, busy = await a.create(), await a.create("script", scenario=scenario)
            await say(idle)
            await until(await begin(busy), "working")
        await b.node.beat()
        assert [record.report.id for record in await b.gateway.store.nodes.all()] == [b.id]
        await say(await b.get(idle.id), "on")
        assert (await b.get(busy.id)).state == "idle"
        [run] = (await b.gateway.store.runs.last_of_each([busy.id])).values()
        assert run.stop_reason == "error"


async def test_a_daemon_that_is_no_node_does_not_share_the_store_of_nodes(tmp_path: Path) -> None:
    async with run_nodes(tmp_path, "a") as (a,):
        table = {"url": a.gateway.settings.store.url}
        config = gateway_config(tmp_path, server={"data_dir": str(tmp_path / "alone")}, store=table)
        with pytest.raises(ConfigError, match="another daemon uses the database"):
            await Gateway(parse(config), (), Redactor(), store_times=StoreTimes(lock=0.2)).open()


def test_a_node_needs_a_store_on_postgresql_and_a_whole_address() -> None:
    with pytest.raises(ConfigError, match=r"store on PostgreSQL"):
        parse({"node": {"address": "http://10.0.0.5:7700"}})
    for address in ("10.0.0.5:7700", "http://10.0.0.5", "http://10.0.0.5:7700/", "ftp://a:1", "http://a:65536", "http://u:p@a:1"):
        with pytest.raises(ConfigError, match=r"node.address"):
            parse({"node": {"address": address}, "store": {"url": "postgresql://db/portico"}})
    found = parse({"node": {"address": "https://[::1]:7700"}, "store": {"url": "postgresql://db/portico"}})
    assert found.node.address == "https://[::1]:7700"


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Daemon]:
    """A node in a process of its own."""
    with stores.use("postgresql"):
        store = {"url": stores.store_url(tmp_path)}
    config = gateway_config(tmp_path, store=store, node={"address": "http://127.0.0.1:7711", "labels": ["gpu"]})
    keys = {"PORTICO_NODE_KEYS": NODE_KEY, "PORTICO_ENCRYPTION_KEY": ENCRYPTION_KEY}
    daemon = Daemon(write_config(tmp_path, config), tmp_path, keys)
    yield await daemon.start()
    if daemon.process is not None and daemon.process.returncode is None:
        await daemon.stop()


async def test_nodes_over_http_and_by_the_command(serving: Daemon) -> None:
    port = str(urlsplit(serving.url).port)
    async with serving.client() as client:
        [node] = (await client.get("/v1/nodes")).json()["nodes"]
        assert (node["own"], node["state"], node["address"], node["labels"]) == (True, "ready", "http://127.0.0.1:7711", ["gpu"])
        assert {"echo", "script"} <= {*node["agents"]} and node["sessions"] == 0
        await client.post("/aap/v3/sessions", json={"agent": {"name": "echo"}})
        assert (await client.get("/v1/nodes")).json()["nodes"][0]["sessions"] == 1
        code, out, err = await PorticoCommand(serving.home, "node", "list", "--port", port, "--json").run()
        assert (code, err) == (0, "") and json.loads(out)["id"] == node["id"]
        code, out, err = await PorticoCommand(serving.home, "node", "list", "--port", port).run()
        assert (code, err) == (0, "") and out.split()[:4] == [node["id"], "*", "ready", "http://127.0.0.1:7711"]
        await expect_error(client.post("/v1/nodes/unknown/drain"), 404)
        key = (await client.post("/v1/keys", json={"name": "phone"})).json()["key"]
        headers = {"Authorization": f"Bearer {key}"}
        await expect_error(client.get("/v1/nodes", headers=headers), 403)
        await expect_error(client.post(f"/v1/nodes/{node['id']}/drain", headers=headers), 403)
        code, out, _ = await PorticoCommand(serving.home, "node", "drain", "--port", port).run()
        assert code == 0 and out == f"the node {node['id']} takes no new work and has no sessions\n"
        assert (await client.get("/v1/nodes")).json()["nodes"][0]["state"] == "draining"
        await expect_error(client.post("/aap/v3/sessions", json={"agent": {"name": "echo"}}), 503)


async def test_a_daemon_that_is_no_node_has_none(portico: RunningGateway) -> None:
    assert (await portico.client.get("/v1/nodes")).json() == {"nodes": []}
    await expect_error(portico.client.post("/v1/nodes/some/drain"), 404)
