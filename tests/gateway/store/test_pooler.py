"""Nodes whose database is behind a pooler that gives them another connection to the server for each transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from gateway.cluster.node import Node
from gateway.store import Store
from gateway.store.backend import NodeIdTaken
from gateway.store.node_ids import NodeRuns
from gateway.store.nodes import NodeReport
from gateway.store.postgresql import _DAEMON_LOCK
from tests.gateway.nodes.two_nodes import run_node
from tests.support import pgbouncer, postgresql
from tests.support.daemon import RunningGateway
from tests.support.requests import create_session, send_turn, user_message

pytestmark = pytest.mark.one_store

NODE = NodeReport(id="node-1", address="http://node:7700")


@pytest.fixture
def database() -> str:
    return postgresql.server().create_database()


@pytest.fixture
def url(database: str) -> Iterator[str]:
    with pgbouncer.pooled(postgresql.server(), database) as url:
        yield url


async def _beat(*nodes: RunningGateway) -> None:
    for running in nodes:
        assert isinstance(running.gateway.node, Node)
        await running.gateway.node.beat()


async def test_nodes_serve_each_others_sessions(url: str, tmp_path: Path) -> None:
    store = {"url": url}
    async with run_node(tmp_path, "one", store=store) as one, run_node(tmp_path, "two", store=store) as two:
        await _beat(one, two)
        sessions = [(await create_session(one.client, "echo"))["sessionId"] for _ in range(4)]
        assert [len(node.gateway.sessions.held) for node in (one, two)] == [2, 2]

        async def turns(session: str) -> None:
            # More than psycopg executes a statement before it prepares it.
            for number in range(8):
                client = (one, two)[number % 2].client
                answer = await send_turn(client, session, f"turn {number}")
                assert answer["messages"][-1]["content"] == f"turn {number}"

        await asyncio.gather(*map(turns, sessions))
        await _beat(one, two)
        for node in (one, two):
            listed = (await node.client.get("/aap/v3/sessions")).json()["sessions"]
            assert {found["sessionId"] for found in listed} == set(sessions)
        assert (await one.client.delete(f"/aap/v3/sessions/{sessions[0]}")).status_code == 204
        body = {"messages": [user_message()]}
        assert (await two.client.post(f"/aap/v3/sessions/{sessions[0]}/turns", json=body)).status_code == 404


async def test_one_daemon_has_the_id_of_a_node(url: str) -> None:
    first = await Store.open_as_node(url, NODE.id)
    await first.nodes.start(NODE, 3600.0)
    opening = asyncio.create_task(Store.open_as_node(url, NODE.id, 60.0))
    await asyncio.sleep(0.3)
    assert not opening.done()
    await first.nodes.beat(NODE, 10.0)
    with pytest.raises(NodeRuns, match="node-1, at http://node:7700"):
        await opening
    # Without a heartbeat the first one counts as dead.
    await asyncio.sleep(0.3)
    second = await Store.open_as_node(url, NODE.id, 0.2)
    await second.nodes.start(NODE, 3600.0)
    with pytest.raises(NodeIdTaken):
        await first.nodes.beat(NODE, 10.0)
    await second.nodes.beat(NODE, 10.0)
    await second.nodes.remove(NODE.id)
    await second.nodes.beat(NODE, 10.0)
    await second.nodes.remove(NODE.id)
    # One that has stopped is not waited for.
    third = await asyncio.wait_for(Store.open_as_node(url, NODE.id, 60.0), 20)
    for store in (first, second, third):
        await store.close()


async def test_a_node_writes_nothing_while_a_daemon_that_is_none_has_the_store(url: str, database: str) -> None:
    store = await Store.open_as_node(url, NODE.id)
    with psycopg.connect(postgresql.server().url(database), autocommit=True) as connection:
        connection.execute(f"SELECT pg_advisory_lock({_DAEMON_LOCK})")
        writing = asyncio.create_task(store.touch())
        await asyncio.sleep(0.3)
        assert not writing.done()
    await asyncio.wait_for(writing, 20)
    await store.close()
