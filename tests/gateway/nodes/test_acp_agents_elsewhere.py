"""ACP clients of a node that has not their agent: the whole connection is forwarded to a node that has it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.cluster.forwarding.node_socket import open_node_socket
from gateway.cluster.node_keys import NodeKeys
from gateway.protocols.acp.transport import http
from gateway.security.authentication import Caller
from tests.gateway.nodes.agents_by_node import AgentsByNode, run_agents_by_node
from tests.support.acp_client import Client, RpcFailed, load, on_http, on_websocket, prompt
from tests.support.daemon import KEY, SCENARIOS, RunningGateway
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

Transport = Callable[[str, str, str], AbstractAsyncContextManager[Client]]
HEADERS = {"Authorization": f"Bearer {KEY}"}
INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
MESSAGES = [{"role": "user", "content": "hello"}]
REQUESTS_FOR_THE_AGENT: dict[str, dict[str, Any]] = {
    "/acp/player": INITIALIZE,
    "/v1/execute": {"driver": "player", "task": "hello"},
    "/v1/chat/completions": {"model": "player", "messages": MESSAGES},
}
"""Bodies by path."""


@pytest.fixture
def unused_address() -> Iterator[str]:
    """An address where nothing listens. Its port is bound, so that nobody else gets it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@asynccontextmanager
async def run_nodes(folder: Path, *names: str, clock: Clock = SYSTEM_CLOCK, **addresses: str) -> AsyncIterator[AgentsByNode]:
    """Run nodes, all of which but `one` have the agent `player`. Others connect to a node at its address, if one is given."""
    scenes = folder / "scenes"
    scenes.mkdir()
    (scenes / "acp.json").write_text((SCENARIOS / "acp.json").read_text())
    agents = {"player": {"driver": "script", "cwd": str(scenes), "options": {"scenario": "acp.json"}}}
    by_node = {name: agents if name != "one" else {} for name in names}
    async with run_agents_by_node(folder, by_node, clock, addresses) as running:
        yield running


@pytest.fixture
async def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[AgentsByNode]:
    """For a test that has `clock`, they have that clock."""
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else SYSTEM_CLOCK
    async with run_nodes(tmp_path, "one", "two", clock=clock) as running:
        yield running


@pytest.fixture(params=["websocket", "http"])
async def client(request: pytest.FixtureRequest, nodes: AgentsByNode) -> AsyncIterator[Client]:
    """An initialized client of the node `one`, over each transport."""
    opened = on_websocket if request.param == "websocket" else on_http
    async with opened(nodes.nodes["one"].url, "player", KEY) as client:
        initialized = await client.initialize()
        assert initialized["agentInfo"]["name"]
        yield client
        assert not client.invalid


async def test_an_agent_of_another_node_is_used_as_one_of_this(client: Client, nodes: AgentsByNode) -> None:
    session = await client.new()
    answer = await client.begin("session/prompt", prompt(session, "work"))
    for _ in range(2):
        await client.answer(await client.next_permission_request(), "allow_once")
    assert (await asyncio.wait_for(answer, 60))["stopReason"] == "end_turn"
    assert client.text(session) == "I write a note.Done."
    assert await nodes.place_of(session) == "two"
    listed = await client.request("session/list", {})
    assert [one["sessionId"] for one in listed["sessions"]] == [session]
    slow = await client.begin("session/prompt", prompt(session, "slow"))
    await client.notify("session/cancel", {"sessionId": session})
    assert (await asyncio.wait_for(slow, 60))["stopReason"] == "cancelled"
    await client.request("session/delete", {"sessionId": session})
    assert not (await client.request("session/list", {}))["sessions"]
    with pytest.raises(RpcFailed, match="there is no session"):
        await client.request("session/load", load("sess_none"))


@pytest.mark.parametrize("transport", [on_websocket, on_http])
async def test_such_a_connection_goes_to_the_node_of_its_first_session(tmp_path: Path, transport: Transport) -> None:
    async with run_nodes(tmp_path, "one", "two", "three") as nodes:
        async with on_websocket(nodes.nodes["three"].url, "player", KEY) as client:
            await client.initialize()
            session = await client.new()
            await client.prompt(session, "hello")
            place = str(await nodes.place_of(session))
        other = "three" if place == "two" else "two"
        nodes.least_loaded = other
        async with transport(nodes.nodes["one"].url, "player", KEY) as client:
            # It is connected to the other one.
            await client.initialize()
            await client.request("session/load", load(session))
            assert (await client.prompt(session, "again"))["stopReason"] == "end_turn"
            assert client.text(session) == "Hello, you said: helloHello, you said: again"
            assert await nodes.place_of(session) == place
            with pytest.raises(RpcFailed, match="there is no session"):
                await client.request("session/load", load("sess_none"))
            assert not client.invalid


async def test_a_connection_over_http_ends_when_its_key_is_removed(nodes: AgentsByNode, clock: ManualClock) -> None:
    """The node that has it does not know the key, which the other one has checked."""
    url, two = f"{nodes.nodes['one'].url}/acp/player", nodes.nodes["two"].gateway
    connected = two.quotas.connections.held
    async with AsyncExitStack() as stack:
        ids = {}
        for name in ("laptop", "phone"):
            key = await nodes.nodes["one"].gateway.credentials.add_key(name)
            client = await stack.enter_async_context(httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60))
            ids[name] = (await client.post(url, json=INITIALIZE)).headers["acp-connection-id"]
            stream = {"Acp-Connection-Id": ids[name], "Accept": "text/event-stream"}
            await stack.enter_async_context(client.stream("GET", url, headers=stream))
        assert all(found.startswith(nodes.node("two").id) for found in ids.values())
        assert dict(connected) == {"laptop": 1, "phone": 1}
        await nodes.nodes["one"].gateway.credentials.remove_key("laptop")
        await clock.expire_until(wait_until(lambda: "laptop" not in connected), http.CHECK_INTERVAL)
        assert connected["phone"] == 1


async def test_what_is_refused_is_refused_in_the_same_words(nodes: AgentsByNode) -> None:
    one, two = nodes.nodes["one"], nodes.nodes["two"]

    async def refusal(running: RunningGateway, target: str, key: str = KEY) -> tuple[int, bytes | bytearray]:
        with pytest.raises(InvalidStatus) as caught:
            async with connect(
                f"ws{running.url[4:]}/acp/{target}", additional_headers={"Authorization": f"Bearer {key}"}, proxy=None
            ):
                pass
        return caught.value.response.status_code, caught.value.response.body

    assert (await refusal(one, "nobody"))[0] == 400
    assert await refusal(one, "player", "another-key-0123456789") == await refusal(two, "player", "another-key-0123456789")
    wrong = await refusal(one, "player?slash_commands=perhaps")
    assert wrong == await refusal(two, "player?slash_commands=perhaps") and wrong[0] == 400


async def test_a_lost_node_ends_the_connection_and_the_sessions_stay(nodes: AgentsByNode) -> None:
    one = nodes.nodes["one"]
    async with on_websocket(one.url, "player", KEY) as client:
        await client.initialize()
        session = await client.new()
        await client.prompt(session, "hello")
    async with connect(f"ws{one.url[4:]}/acp/player", additional_headers=HEADERS, proxy=None) as own:
        one.gateway.node_lost("another")
        one.gateway.node_lost(nodes.node("two").id)
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(own.recv(), 10)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001
        assert closed.value.rcvd.reason == "the node of this connection has ended; connect again"
    async with on_websocket(one.url, "player", KEY) as client:
        await client.initialize()
        await client.request("session/load", load(session))
        assert client.text(session) == "Hello, you said: hello"


async def test_a_client_that_leaves_leaves_nothing_behind_and_one_whose_key_is_revoked_is_disconnected(
    nodes: AgentsByNode,
) -> None:
    one, two = nodes.nodes["one"].gateway, nodes.nodes["two"].gateway
    key = await one.credentials.add_key("ci")
    async with on_websocket(nodes.nodes["one"].url, "player", key) as client:
        await client.initialize()
        session = await client.new()
        # The middleware's and that of this connection.
        assert len(one.on_node_lost) == 2
        assert one.quotas.connections.held and not two.quotas.connections.held
        record = await two.store.sessions.get(session)
        assert record is not None and record.owner == "ci"
    await wait_until(lambda: len(one.on_node_lost) == 1 and not one.quotas.connections.held)
    headers = {"Authorization": f"Bearer {key}"}
    async with connect(f"ws{nodes.nodes['one'].url[4:]}/acp/player", additional_headers=headers, proxy=None) as own:
        await one.credentials.remove_key("ci")
        await own.send("{}")
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(own.recv(), 10)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008


async def test_without_a_node_that_can_be_reached_the_client_is_told_to_come_again(tmp_path: Path, unused_address: str) -> None:
    async with run_nodes(tmp_path, "one", "two", two=unused_address) as nodes:
        one = nodes.nodes["one"]
        await nodes.node("one").beat()
        # By then the node is known to be out of reach.
        for _ in range(2):
            status, retry_after, text = await refused_websocket(one.url)
            assert (status, retry_after) == (503, "10")
            assert "none of them takes new work or can be reached; try again in some seconds" in text
            assert "127.0.0.1" not in text
        for path, body in REQUESTS_FOR_THE_AGENT.items():
            response = await one.client.post(path, json=body, headers=HEADERS)
            assert (response.status_code, response.headers.get("Retry-After")) == (503, "10"), (path, response.text)
            assert "none of them takes new work or can be reached" in response.text, path
        unknown = await one.client.post("/acp/nobody", json=INITIALIZE, headers=HEADERS)
        assert unknown.status_code == 400


async def test_a_node_with_other_keys_does_not_get_what_is_new(tmp_path: Path) -> None:
    """It has nothing to do, and so is the least loaded one."""
    async with run_nodes(tmp_path, "one", "three", "two") as nodes:
        one, two, three = (nodes.node(name) for name in ("one", "two", "three"))
        nodes.nodes["two"].gateway.node_keys = NodeKeys(two.id, ["another-node-key-for-tests-0123456789abcdef"])
        nodes.least_loaded = "two"
        for path in ("/v1/execute", "/v1/chat/completions"):
            response = await nodes.nodes["one"].client.post(path, json=REQUESTS_FOR_THE_AGENT[path], headers=HEADERS)
            assert response.status_code == 200, response.text
        assert one.directory.choose("player", None) == three.id


async def test_an_agent_of_a_drained_node_only_is_not_unknown(nodes: AgentsByNode) -> None:
    one = nodes.nodes["one"]
    await one.gateway.store.nodes.drain(nodes.node("two").id)
    await nodes.node("one").beat()
    for path, body in REQUESTS_FOR_THE_AGENT.items():
        response = await one.client.post(path, json=body, headers=HEADERS)
        assert (response.status_code, response.headers.get("Retry-After")) == (503, "10"), (path, response.text)
    assert (await refused_websocket(one.url))[:2] == (503, "10")


async def refused_websocket(url: str) -> tuple[int, str, str]:
    """Connect an ACP client in vain: the status, Retry-After and body of the response."""
    with pytest.raises(InvalidStatus) as caught:
        async with connect(f"ws{url[4:]}/acp/player", additional_headers=HEADERS, proxy=None):
            pass
    response = caught.value.response
    return response.status_code, response.headers["Retry-After"], bytes(response.body).decode()


async def test_the_system_notices_that_the_machine_of_another_node_is_gone(nodes: AgentsByNode) -> None:
    """Not pings of this node: their pongs are behind the messages that a slow client has not read yet."""
    one = nodes.nodes["one"].gateway
    elsewhere = one.agent_elsewhere("player")
    assert elsewhere is not None
    opened = await open_node_socket(one, elsewhere, "player", Caller(None, all_sessions=True), {})
    try:
        assert opened.ping_interval is None
        connected = opened.transport.get_extra_info("socket")
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    finally:
        await opened.close()


@pytest.mark.parametrize("transport", [on_websocket, on_http])
async def test_another_node_is_tried_where_one_cannot_be_reached(
    tmp_path: Path, unused_address: str, transport: Transport
) -> None:
    async with run_nodes(tmp_path, "one", "three", "two", two=unused_address) as nodes:
        nodes.least_loaded = "two"
        async with transport(nodes.nodes["one"].url, "player", KEY) as client:
            await client.initialize()
            session = await client.new()
            assert (await client.prompt(session, "hello"))["stopReason"] == "end_turn"
        assert await nodes.place_of(session) == "three"


async def test_another_node_is_tried_where_one_refuses_the_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with run_nodes(tmp_path, "one", "three", "two") as nodes:
        one, two = nodes.node("one"), nodes.node("two")
        nodes.least_loaded = "two"
        nodes.nodes["two"].gateway.node_keys = NodeKeys(two.id, ["another-node-key-for-tests-0123456789abcdef"])
        async with on_websocket(nodes.nodes["one"].url, "player", KEY) as client:
            await client.initialize()
            assert f"{two.id} refuses the connection" in caplog.text
            session = await client.new()
            assert await nodes.place_of(session) == "three"
        # What else is new goes to that node still.
        assert two.id in one.directory.others and one.directory.choose("player", None) == two.id
