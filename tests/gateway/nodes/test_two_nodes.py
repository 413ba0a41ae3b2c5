"""Two nodes over one PostgreSQL: each of them takes any request, and forwards those of the other's sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.app import Gateway
from gateway.config import parse
from gateway.security.redaction import Redactor
from tests.gateway.nodes.cluster import NODE_KEY
from tests.gateway.nodes.two_nodes import ENCRYPTION_KEY
from tests.gateway.protocols.acp.client import load
from tests.gateway.protocols.acp.transports import on_websocket
from tests.support import stores
from tests.support.daemon import KEY, RunningGateway, address_of, bound_socket, gateway_config, serve_gateway
from tests.support.requests import create_session, execute, send_turn, user_message

pytestmark = pytest.mark.usefixtures("store_kind")
WriteScenario = Callable[..., str]


stacks: list[AsyncExitStack] = []
"""What ends each of the nodes."""


@pytest.fixture(params=["postgresql"])
def store_kind(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    with stores.use(request.param):
        yield


@pytest.fixture
async def nodes(tmp_path: Path, store_kind: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[RunningGateway]]:
    """The nodes, with the names that their configuration has for each other."""
    monkeypatch.setenv("PORTICO_NODE_KEYS", NODE_KEY)
    monkeypatch.setenv("PORTICO_ENCRYPTION_KEY", ENCRYPTION_KEY)
    url = stores.store_url(tmp_path)
    async with AsyncExitStack() as stack:
        running = []
        stacks.clear()
        for name in ("a", "b"):
            listener = bound_socket()
            node = {"address": address_of(listener)}
            config = gateway_config(tmp_path, store={"url": url}, node=node)
            config["server"]["data_dir"] = str(tmp_path / name)
            settings = parse(config)
            gateway = Gateway(settings, settings.auth.keys, Redactor())
            stacks.append(await stack.enter_async_context(AsyncExitStack()))
            running.append(await stacks[-1].enter_async_context(serve_gateway(gateway, listener)))
        for found in running:
            assert found.gateway.node is not None
            await found.gateway.node.beat()
        yield running


def node_of(nodes: list[RunningGateway], session: str) -> RunningGateway:
    [found] = [running for running in nodes if session in [held.id for held in running.gateway.sessions.held]]
    return found


async def test_sessions_of_one_node_are_used_at_both(nodes: list[RunningGateway]) -> None:
    sessions = [(await create_session(nodes[0].client, "echo"))["sessionId"] for _ in range(4)]
    # The least loaded node gets the next one, whichever is asked.
    assert sorted(len(running.gateway.sessions.held) for running in nodes) == [2, 2]
    for running in nodes:
        for session in sessions:
            assert (await send_turn(running.client, session, "again"))["messages"][-1]["content"] == "again"
    assert [len(running.gateway.sessions.held) for running in nodes] == [2, 2]
    assert (await execute(nodes[1].client, "a task", "echo"))[-1]["kind"] == "session_end"


async def test_a_node_that_stops_gives_its_sessions_to_the_other_one(nodes: list[RunningGateway]) -> None:
    session = (await create_session(nodes[0].client, "echo"))["sessionId"]
    owner = node_of(nodes, session)
    [other] = [running for running in nodes if running is not owner]
    async with on_websocket(other.url, "echo", KEY) as client:
        await client.initialize()
        await client.request("session/load", load(session))
        await client.prompt(session, "before ")
        await stacks[nodes.index(owner)].aclose()
        # The other node has perhaps had no heartbeat since then.
        for _ in range(3):
            await create_session(other.client, "echo")
        assert (await send_turn(other.client, session, "after"))["stopReason"] == "end_turn"
    async with on_websocket(other.url, "echo", KEY) as client:
        await client.initialize()
        await client.request("session/load", load(session))
        assert (await client.prompt(session, "again"))["stopReason"] == "end_turn"
        assert "before after" in client.text(session) and "again" in client.text(session)
    assert node_of([other], session) is other
