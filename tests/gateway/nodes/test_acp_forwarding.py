"""ACP connections whose sessions are at another node: the whole connection is forwarded there."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import InvalidStatus

from gateway.cli.local_daemon import LocalDaemon
from gateway.cluster.node_keys import NodeKeys
from gateway.config import parse
from gateway.errors import LeaseLost, SessionElsewhere
from gateway.protocols.acp import forwarding
from gateway.protocols.acp.transport.local_socket import LocalSocket
from gateway.protocols.acp.transport.websocket import WebSockets
from gateway.security.authentication import ADMINISTRATOR, Caller
from tests.gateway.nodes.cluster import ELSEWHERE, NODE_KEY, Cluster, run_cluster
from tests.gateway.protocols.acp.conftest import set_options
from tests.support.acp_client import Client, RpcFailed, load, on_http, on_websocket, prompt
from tests.support.daemon import KEY, SCENARIOS, RunningGateway
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """The nodes `a` and `b`, whose script agents play acp.json. New sessions are created at `b`."""
    scenes = tmp_path / "scenes"
    scenes.mkdir()
    (scenes / "acp.json").write_text((SCENARIOS / "acp.json").read_text())
    agents = {"script": {"driver": "script", "cwd": str(scenes), "options": {"scenario": "acp.json"}}}
    async with run_cluster(tmp_path, "a", "b", agents=agents) as running:
        running.placement.creator = "b"
        yield running


@pytest.fixture(params=["websocket", "http"])
async def client(request: pytest.FixtureRequest, cluster: Cluster) -> AsyncIterator[Client]:
    """An initialized client of the node `a`, over each transport."""
    opened = on_websocket if request.param == "websocket" else on_http
    async with opened(cluster.a.url, "script", KEY) as client:
        await client.initialize()
        yield client
        assert not client.invalid


@asynccontextmanager
async def connected(cluster: Cluster, agent: str = "script", **capabilities: Any) -> AsyncIterator[Client]:
    async with on_websocket(cluster.a.url, agent, KEY) as client:
        await client.initialize(**capabilities)
        yield client
        assert not client.invalid


async def test_a_session_of_another_node_is_used_as_one_of_this(
    client: Client, cluster: Cluster, write_scenario: WriteScenario
) -> None:
    """Each kind of message goes through both nodes: requests, notifications, updates, and requests to the client."""
    session = await client.new()
    assert cluster.placement.sessions == {session: "b"}
    answer = await client.begin("session/prompt", prompt(session, "work"))
    request = await client.next_permission_request()
    await client.notify("session/cancel", {"sessionId": session})
    assert (await asyncio.wait_for(answer, 60))["stopReason"] == "cancelled"
    cancelled = await client.until(lambda all: [m for m in all if m.get("method") == "$/cancel_request"])
    assert cancelled[0]["params"]["requestId"] == request["id"]
    answer = await client.begin("session/prompt", prompt(session, "slow"), request_id="my-prompt")
    seen = len(client.received)
    await client.until(lambda _: client.text(session, since=seen))
    await client.notify("$/cancel_request", {"requestId": "my-prompt"})
    assert (await asyncio.wait_for(answer, 60))["stopReason"] == "cancelled"
    for method in ("session/load", "session/resume"):
        with pytest.raises(RpcFailed, match="additionalDirectories"):
            await client.request(method, {**load(session), "additionalDirectories": ["/missing"]})
    with pytest.raises(RpcFailed) as refused:
        await client.request("session/prompt", {"sessionId": session})
    assert refused.value.code == -32602
    cluster.placement.sessions["sess_none"] = "b"
    with pytest.raises(RpcFailed, match="there is no session 'sess_none'"):
        await client.request("session/load", load("sess_none"))
    forked = (await client.request("session/fork", load(session)))["sessionId"]
    assert cluster.placement.sessions[forked] == "b"
    await client.request("session/close", {"sessionId": forked})
    with pytest.raises(RpcFailed, match="not open on this connection"):
        await client.prompt(forked)
    # It stays open as it was. The answer of a prompt comes after its updates.
    await set_options(cluster.b.gateway, session, scenario=write_scenario([{"events": {"count": 200, "text": "{n} "}}]))
    seen = len(client.received)
    await client.prompt(session)
    assert client.text(session, since=seen) == "".join(f"{n} " for n in range(200))
    await client.request("session/delete", {"sessionId": session})
    assert await cluster.b.gateway.store.sessions.get(session) is None


async def created_at(cluster: Cluster, node: str) -> str:
    """A session of the node with a message, created by another client."""
    async with on_websocket(cluster.nodes[node].url, "script", KEY) as other:
        await other.initialize()
        cluster.placement.creator = node
        session = await other.new()
        await other.prompt(session, "before")
        return session


async def test_a_session_of_another_node_is_opened_by_the_first_request(client: Client, cluster: Cluster) -> None:
    session = await created_at(cluster, "b")
    await client.request("session/list")
    await client.request("session/load", load(session))
    assert client.text(session) == "Hello, you said: before"
    assert (await client.prompt(session, "again"))["stopReason"] == "end_turn"
    assert "again" in client.text(session)
    assert [held.id for held in cluster.b.gateway.sessions.held] == [session] and not cluster.a.gateway.sessions.held


async def test_a_connection_whose_sessions_are_closed_goes_to_another_node(client: Client, cluster: Cluster) -> None:
    cluster.placement.creator = "a"
    here = await client.new()
    answer = await client.begin("session/prompt", prompt(here, "work"))
    asked = [await client.next_permission_request()]
    await client.request("session/close", {"sessionId": here})
    assert (await answer)["stopReason"] == "cancelled"
    cluster.placement.creator = "b"
    there = await client.new()
    answer = await client.begin("session/prompt", prompt(there, "work"))
    for _ in range(2):
        asked.append(await client.next_permission_request())
        # This node's request was cancelled: an answer to it must not be taken for one to the other node's.
        await client.answer(asked[0], "reject_once")
        await client.answer(asked[-1], "allow_once")
    assert (await asyncio.wait_for(answer, 60))["stopReason"] == "end_turn"
    assert client.text(there) == "I write a note.Done."
    assert len({request["id"] for request in asked}) == 3


async def test_files_of_the_client_are_read_through_both_nodes(cluster: Cluster, write_scenario: WriteScenario) -> None:
    reads = {"tool_call": {"id": "c", "name": "lookup", "input": {"query": "q"}, "client": {"read_file": "a.txt"}}}
    scenario = write_scenario([reads, {"text": "over"}])
    async with connected(cluster, fs={"readTextFile": True}) as client:
        session = await client.new()
        await set_options(cluster.b.gateway, session, scenario=scenario)
        prompting = await client.begin("session/prompt", prompt(session, "go"))
        client.choose = lambda _: "allow_once"
        request = await client.next_service_request("fs/read_text_file")
        assert request["params"]["sessionId"] == session
        await client.respond(request, content="from the client")
        assert (await asyncio.wait_for(prompting, 60))["stopReason"] == "end_turn"
        assert "from the client" in json.dumps(client.updates(session))


def sockets_of(running: RunningGateway) -> int:
    """The connections of sockets that are open at a node."""
    ended = [close for close in running.gateway.close_last if isinstance(getattr(close, "__self__", None), WebSockets)]
    return sum(len(close.__self__._open) for close in ended)  # type: ignore[attr-defined]


async def test_the_other_node_knows_the_caller_and_a_client_that_leaves_leaves_no_connection_behind(cluster: Cluster) -> None:
    key = await cluster.a.gateway.credentials.add_key("ci")
    async with on_websocket(cluster.a.url, "echo", key) as client:
        await client.initialize()
        session = await client.new()
        await client.new()
        await client.prompt(session)
        # The middleware's and that of this connection. The client's connection is counted by its own node only.
        assert len(cluster.a.gateway.on_node_lost) == 2
        assert cluster.a.gateway.quotas.connections.held and not cluster.b.gateway.quotas.connections.held
    record = await cluster.b.gateway.store.sessions.get(session)
    assert record is not None and record.owner == "ci"
    await wait_until(lambda: len(cluster.a.gateway.on_node_lost) == 1 and not sockets_of(cluster.b))


async def test_a_session_of_this_node_that_another_one_has_taken_over_is_loaded_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_cluster(tmp_path, "a", "b", shared=("a", "b")) as cluster, connected(cluster, "echo") as client:
        session = await client.new()
        await client.prompt(session, "one")
        [held] = cluster.a.gateway.sessions.held

        async def lost(*_: Any) -> Any:
            raise LeaseLost(session)

        monkeypatch.setattr(held, "submit", lost)
        cluster.placement.sessions[session] = "b"
        with pytest.raises(RpcFailed, match=r"is on another node .* by now; send session/load or session/resume"):
            await client.prompt(session, "two")
        await client.request("session/resume", load(session))
        assert (await client.prompt(session, "two"))["stopReason"] == "end_turn"
        assert client.text(session) == "onetwo"
        assert [s.id for s in cluster.b.gateway.sessions.held] == [session]


NODE_ENDED = (1001, "the node of this connection has ended; connect again")


async def test_a_websocket_is_closed_when_the_node_of_the_connection_is_lost(cluster: Cluster) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with connect(f"ws{cluster.a.url[4:]}/acp/script", additional_headers=headers, proxy=None) as socket:

        async def send(message: dict[str, Any]) -> None:
            await socket.send(json.dumps(message))

        async def read() -> None:
            async for frame in socket:
                await own.receive(json.loads(frame))

        own = Client(send)
        reading = asyncio.create_task(read())
        await own.initialize()
        session = await own.new()
        answer = await own.begin("session/prompt", prompt(session, "slow"))
        await own.until(lambda _: own.text(session))
        cluster.a.gateway.node_lost("c")
        cluster.a.gateway.node_lost("b")
        await asyncio.wait_for(reading, 60)
        assert (socket.close_code, socket.close_reason) == NODE_ENDED
        assert not answer.done()
    await wait_until(lambda: len(cluster.a.gateway.on_node_lost) == 1 and not sockets_of(cluster.b))
    # The session stays: the client connects again.
    async with connected(cluster) as client:
        await client.request("session/load", load(session))


async def test_a_connection_over_http_ends_when_its_node_is_lost(cluster: Cluster) -> None:
    url, headers = f"{cluster.a.url}/acp/script", {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
        http.headers["Acp-Connection-Id"] = (await http.post(url, json=message)).headers["acp-connection-id"]
        new = {"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": {"cwd": ".", "mcpServers": []}}
        received = ""
        async with http.stream("GET", url, headers={"Accept": "text/event-stream"}) as stream:
            await http.post(url, json=new)
            async for text in stream.aiter_text():
                received += text
                if '"sessionId"' in received:
                    cluster.a.gateway.node_lost("b")
        assert cluster.placement.sessions
        assert (await http.post(url, json={**new, "id": 3})).status_code == 404
    await wait_until(lambda: len(cluster.a.gateway.on_node_lost) == 1 and not sockets_of(cluster.b))


@asynccontextmanager
async def local_client(cluster: Cluster, folder: Path) -> AsyncIterator[tuple[Client, asyncio.Task[None]]]:
    """A client of the node `a` over the socket of `portico acp`, and the task that reads until the node closes the socket."""
    server = LocalSocket(cluster.a.gateway, folder)
    await server.open()
    settings = parse({"server": {"data_dir": str(folder)}})
    found = LocalDaemon(lambda: settings, (), {"agent": "script", "slash_commands": None})
    connection = await asyncio.to_thread(found.connect, 0)
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=2**24)

    async def send(message: dict[str, Any]) -> None:
        writer.write(json.dumps(message).encode() + b"\n")

    async def read() -> None:
        async for line in reader:
            await own.receive(json.loads(line))

    own = Client(send)
    reading = asyncio.create_task(read())
    try:
        await own.initialize()
        yield own, reading
    finally:
        writer.close()
        await reading
        await server.none_left()
        await server.close()


async def test_a_client_of_the_local_socket_is_forwarded_until_its_node_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    session = await created_at(cluster, "b")
    async with local_client(cluster, tmp_path) as (client, reading):
        await client.request("session/load", load(session))
        assert client.text(session) == "Hello, you said: before"
        answer = await client.begin("session/prompt", prompt(session, "work"))
        for _ in range(2):
            await client.answer(await client.next_permission_request(), "allow_once")
        assert (await asyncio.wait_for(answer, 60))["stopReason"] == "end_turn"
        cluster.a.gateway.node_lost("b")
        await asyncio.wait_for(reading, 60)
        assert not client.invalid
    async with local_client(cluster, tmp_path) as (client, _):
        await client.request("session/load", load(session))


@asynccontextmanager
async def three(folder: Path) -> AsyncIterator[Cluster]:
    """Three nodes, of which `b` and `c` have one store."""
    async with run_cluster(folder, "a", "b", "c", shared=("b", "c")) as cluster:
        cluster.placement.creator = "b"
        yield cluster


async def test_a_node_that_refuses_a_session_makes_the_sender_look_again(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        async with on_websocket(cluster.b.url, "echo", KEY) as client:
            await client.initialize()
            session = await client.new()
            await client.prompt(session, "one")
        cluster.placement.sessions[session] = "c"
        asked, get = [], cluster.a.gateway.sessions.get

        async def stale(caller: Caller, session_id: str, **more: Any) -> Any:
            """The node `b` knows of the move before `a` does."""
            asked.append(session_id)
            if len(asked) == 1:
                raise SessionElsewhere("b", cluster.b.url, session_id)
            return await get(caller, session_id, **more)

        cluster.a.gateway.sessions.get = stale  # type: ignore[method-assign]
        async with on_websocket(cluster.a.url, "echo", KEY) as client:
            await client.initialize()
            await client.request("session/load", load(session))
            assert (await client.prompt(session, "two"))["stopReason"] == "end_turn"
        assert asked == [session, session]
        assert [s.id for s in cluster.c.gateway.sessions.held] == [session]
        await wait_until(lambda: not sockets_of(cluster.b))


async def test_a_session_that_moves_all_the_time_is_an_error_in_words_and_the_connection_stays(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        asked = list[str]()

        async def moving(caller: Caller, session_id: str, **more: Any) -> Any:
            asked.append(session_id)
            node = "bc"[len(asked) % 2]
            raise SessionElsewhere(node, cluster.nodes[node].url, session_id)

        cluster.placement.sessions["sess_x"] = "a"
        get, cluster.a.gateway.sessions.get = cluster.a.gateway.sessions.get, moving  # type: ignore[method-assign]
        async with on_websocket(cluster.a.url, "echo", KEY) as client:
            await client.initialize()
            with pytest.raises(RpcFailed, match="this session moves from node to node; send the request again"):
                await client.request("session/load", load("sess_x"))
            assert len(asked) == 3
            cluster.placement.creator, cluster.a.gateway.sessions.get = "a", get  # type: ignore[method-assign]
            session = await client.new()
            assert cluster.placement.sessions[session] == "a"
            assert (await client.prompt(session, "here"))["stopReason"] == "end_turn"


async def test_a_node_that_cannot_be_reached_is_an_error_in_words(cluster: Cluster) -> None:
    cluster.placement.addresses["b"] = ELSEWHERE
    async with connected(cluster) as client:
        for _ in range(2):
            with pytest.raises(RpcFailed, match="has ended; send it again") as failed:
                await client.new()
            assert "127.0.0.1" not in failed.value.message
        cluster.placement.addresses["b"] = cluster.b.url
        assert (await client.prompt(await client.new(), "hi"))["stopReason"] == "end_turn"


async def test_a_node_that_does_not_answer_is_an_error_in_words(
    cluster: Cluster, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def mute(socket: ServerConnection) -> None:
        await socket.wait_closed()

    async with serve(mute, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"

        async def opened(*_: Any) -> ClientConnection:
            return await connect(url, proxy=None)

        monkeypatch.setattr(forwarding, "open_node_socket", opened)
        cluster.a.gateway.clock = clock
        async with connected(cluster) as client:
            creating = asyncio.create_task(client.new())
            await clock.expire(forwarding.ANSWER_TIMEOUT)
            with pytest.raises(RpcFailed, match="does not answer; send it again"):
                await creating


async def refused(url: str, headers: dict[str, str]) -> int:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(f"ws{url[4:]}/acp/echo", additional_headers=headers, proxy=None):
            pass
    return caught.value.response.status_code


async def test_a_websocket_with_a_wrong_signature_is_refused(cluster: Cluster) -> None:
    keys = NodeKeys("a", [NODE_KEY])

    def headers(keys: NodeKeys, target: bytes = b"/acp/echo") -> dict[str, str]:
        sent = keys.sign("b", "GET", target, b"", ADMINISTRATOR)
        return {"Portico-Node": sent.signature, "Portico-Caller": sent.caller, "Authorization": f"Bearer {KEY}"}

    once = headers(keys)
    async with connect(f"ws{cluster.b.url[4:]}/acp/echo", additional_headers=once, proxy=None) as socket:
        await socket.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}))
        assert json.loads(await socket.recv())["result"]["protocolVersion"] == 1
    for wrong in (once, headers(NodeKeys("a", ["another-key-0123456789-0123456789-0123"])), headers(keys, target=b"/acp/script")):
        assert await refused(cluster.b.url, wrong) == 401


async def test_nothing_is_sent_to_a_node_without_proof(cluster: Cluster) -> None:
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(line.split(": ")[1] for line in head.split("\r\n") if line.lower().startswith("sec-websocket-key"))
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        lines = [
            "HTTP/1.1 101 Switching Protocols",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Accept: {accept}",
        ]
        writer.write("\r\n".join([*lines, f"Portico-Node-Proof: {'0' * 64}", "", ""]).encode())
        got.append(await reader.read(2))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    cluster.placement.addresses["b"] = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with connected(cluster) as client:
        with pytest.raises(RpcFailed, match="could not be verified"):
            await client.new()
    server.close()
    # A close frame, no text.
    assert got and got[0][0] == 0x88
