"""Clients that send too much or read nothing: invalid, oversized and numerous messages, and slow readers."""

from __future__ import annotations

import asyncio
import json
import socket as sockets
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from gateway.protocols.acp import connection
from gateway.protocols.acp.transport import http, http_streams, websocket
from gateway.security.authentication import ADMINISTRATOR
from gateway.server.guard import UNREAD_SECONDS
from tests.gateway.protocols.acp.raw_connections import BEARER, INITIALIZE, STREAM, answer_to, asked, initialized, rpc, socket_to
from tests.support.cluster import leave_out, placement
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

DEEP = "[" * 100_000 + "]" * 100_000


async def test_invalid_json_is_refused_and_the_connection_stays_open(portico: RunningGateway) -> None:
    for text in ("{nonsense", DEEP, '{"a": NaN}', '{"a": Infinity}', '"\\ud800"', "\x00"):
        async with socket_to(portico) as socket:
            await socket.send(text)
            refusal = json.loads(await asyncio.wait_for(socket.recv(), 60))
            assert (refusal["id"], refusal["error"]["code"]) == (None, -32700), text
            assert "result" in await asked(socket, rpc("session/list", {})), text
        url = f"{portico.url}/acp/echo"
        async with httpx.AsyncClient(headers=BEARER, timeout=60) as client:
            connection_header = await initialized(client, url)
            headers = {**connection_header, "Content-Type": "application/json"}
            refused = await client.post(url, content=text.encode(), headers=headers)
            assert (refused.status_code, "not JSON" in refused.json()["error"]) == (400, True), text
            assert (await client.post(url, json=rpc("session/list", {}), headers=connection_header)).status_code == 202, text
    # JSON that is not a message is refused and the connection stays open.
    for text in ("[]", "3", "null", '{"id": 1.5, "method": "x"}', '{"method": 3}', '{"method": {}}', "{}"):
        async with socket_to(portico) as socket:
            await socket.send(text)
            refusal = json.loads(await asyncio.wait_for(socket.recv(), 60))
            assert (refusal["id"], refusal["error"]["code"]) == (None, -32600), text
            assert "result" in await asked(socket, rpc("session/list", {})), text
    # Message over several lines is accepted.
    async with socket_to(portico) as socket:
        await socket.send(json.dumps(rpc("session/list", {}), indent=2))
        assert "result" in await answer_to(socket, 1)


async def test_message_larger_than_max_body_is_refused(tmp_path: Path) -> None:
    async with run_gateway(gateway_config(tmp_path, server={"max_body": 100_000})) as portico:
        large = rpc("session/prompt", {"sessionId": "s", "prompt": [{"type": "text", "text": "x" * 100_000}]})
        async with socket_to(portico) as socket:
            await socket.send(json.dumps(large))
            await asyncio.wait_for(socket.wait_closed(), 60)
            assert socket.close_code == 1009
        # Compressed, the message is small.
        async with socket_to(portico, compression="deflate") as socket:
            await socket.send(json.dumps(large))
            await asyncio.wait_for(socket.wait_closed(), 60)
            assert socket.close_code == 1009
        async with httpx.AsyncClient(headers=BEARER, timeout=60) as client:
            url = f"{portico.url}/acp/echo"
            assert (await client.post(url, json=large, headers=await initialized(client, url))).status_code == 413
        async with socket_to(portico) as socket:
            assert "result" in await asked(socket, rpc("session/list", {}))


async def test_http_client_that_does_not_read_is_disconnected(
    portico: RunningGateway, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_streams, "MAX_BUFFERED_BYTES", 200_000)
    url = f"{portico.url}/acp/echo"
    async with httpx.AsyncClient(headers=BEARER, timeout=20) as client:
        connection_header = await initialized(client, url)
        async with client.stream("GET", url, headers={**connection_header, **STREAM}) as own:
            await client.post(url, json=rpc("session/new", {"cwd": ".", "mcpServers": []}), headers=connection_header)
            lines = own.aiter_lines()
            line = await anext(line async for line in lines if line.startswith("data"))
            session = json.loads(line[5:])["result"]["sessionId"]
            params = {"sessionId": session, "prompt": [{"type": "text", "text": "word " * 50_000}]}
            await client.post(
                url, json=rpc("session/prompt", params, 2), headers={**connection_header, "Acp-Session-Id": session}
            )
            # The other stream ends as well, so that the client sees the end of the connection.
            [connected] = _clients(portico).values()
            await wait_until(lambda: connected.closed)
            await clock.expire(http.CHECK_INTERVAL)
            assert [line async for line in lines if line.startswith("data")] == []
        assert (await client.post(url, json=rpc("session/list", {}), headers=connection_header)).status_code == 404
    async with socket_to(portico, max_size=None) as socket:
        await socket.send(json.dumps(rpc("session/load", {"sessionId": session, "cwd": ".", "mcpServers": []})))
        replayed = 0
        async with asyncio.timeout(60):
            async for frame in socket:
                replayed += len(frame)
                if json.loads(frame).get("id") == 1:
                    break
        assert replayed > 400_000


async def test_websocket_client_that_does_not_read_is_disconnected(tmp_path: Path) -> None:
    if placement():
        # Before it has a connection, which would stay open.
        leave_out("uses `close_last` of a gateway")
    clock = ManualClock()
    async with run_gateway(gateway_config(tmp_path), clock) as portico:
        async with socket_to(portico, max_size=None) as first:
            session = (await asked(first, rpc("session/new", {"cwd": ".", "mcpServers": []})))["result"]["sessionId"]
            params = {"sessionId": session, "prompt": [{"type": "text", "text": "word " * 1_000_000}]}
            assert (await asked(first, rpc("session/prompt", params, 2)))["result"]["stopReason"] == "end_turn"
        loading = rpc("session/load", {"sessionId": session, "cwd": ".", "mcpServers": []}, 3)
        # Compressed, the text would fit into the buffers of the kernel.
        options: Any = {"additional_headers": BEARER, "proxy": None, "compression": None, "ping_interval": None}
        slow_reader = await connect(f"ws{portico.url[4:]}/acp/echo", sock=_small_socket(portico), **options)
        await asked(slow_reader, INITIALIZE)
        slow_reader.transport.pause_reading()
        await slow_reader.send(json.dumps(loading))
        # The other clients of the session are not delayed.
        async with socket_to(portico, max_size=None) as other:
            assert "result" in await asked(other, loading)
            more = {"sessionId": session, "prompt": [{"type": "text", "text": "more"}]}
            assert (await asked(other, rpc("session/prompt", more, 4)))["result"]["stopReason"] == "end_turn"
        assert _sockets_open(portico) == 1
        await clock.expire(UNREAD_SECONDS)
        await wait_until(lambda: not _sockets_open(portico))
        slow_reader.transport.abort()


def _small_socket(portico: RunningGateway) -> sockets.socket:
    """A connected socket with a small receive buffer."""
    small = sockets.socket()
    small.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    small.connect(("127.0.0.1", int(portico.url.rpartition(":")[2])))
    return small


def _sockets_open(portico: RunningGateway) -> int:
    """The number of WebSockets that the gateway handles."""
    return len(_find_owner(portico, websocket.WebSockets)._open)


def _find_owner(portico: RunningGateway, owner_type: type) -> Any:
    return next(owner for end in portico.gateway.close_last if isinstance(owner := getattr(end, "__self__", None), owner_type))


async def test_connection_without_requests_or_readers_times_out(portico: RunningGateway, clock: ManualClock) -> None:
    url = f"{portico.url}/acp/echo"
    async with httpx.AsyncClient(headers=BEARER, timeout=20) as client:
        read, unread = await initialized(client, url), await initialized(client, url)
        async with client.stream("GET", url, headers={**read, **STREAM}) as own:
            assert own.status_code == 200
            # A DELETE would end the connection and any other request would keep it, so the test reads internal state.
            assert len(_clients(portico)) == 2
            for _ in range(round(http.CLIENT_TIMEOUT / http.CHECK_INTERVAL) + 1):
                await clock.expire(http.CHECK_INTERVAL)
            await wait_until(lambda: len(_clients(portico)) == 1)
            assert (await client.post(url, json=rpc("session/list", {}), headers=read)).status_code == 202
            assert (await client.post(url, json=rpc("session/list", {}), headers=unread)).status_code == 404


async def test_an_idle_stream_is_kept_open(portico: RunningGateway, clock: ManualClock) -> None:
    url = f"{portico.url}/acp/echo"
    async with httpx.AsyncClient(headers=BEARER, timeout=20) as client:
        header = await initialized(client, url)
        async with client.stream("GET", url, headers={**header, **STREAM}) as own:
            await clock.expire(portico.gateway.keep_alive)
            assert await anext(own.aiter_lines()) == ": keep-alive"


async def test_a_reader_that_never_reads_does_not_keep_its_connection(portico: RunningGateway, clock: ManualClock) -> None:
    """As one whose client has disconnected before the response began."""
    url = f"{portico.url}/acp/echo"
    async with httpx.AsyncClient(headers=BEARER, timeout=20) as client:
        header = await initialized(client, url)
        [connected] = _clients(portico).values()
        connected.attach(None)
        assert (await client.get(url, headers={**header, **STREAM})).status_code == 409
        await clock.expire(http_streams.READER_START_TIMEOUT)
        assert not connected.has_reader
        async with client.stream("GET", url, headers={**header, **STREAM}) as own:
            assert own.status_code == 200
            await clock.expire(http_streams.READER_START_TIMEOUT)
            assert connected.has_reader


async def test_initialize_without_an_answer_leaves_no_connection(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(connection: connection.Connection, message: Any) -> None:
        """Answer nothing, as while an agent hangs."""

    monkeypatch.setattr(connection.Connection, "receive", never)
    async with (
        run_gateway(gateway_config(tmp_path, limits={"connections_per_key": 2}), clock) as portico,
        httpx.AsyncClient(headers=BEARER, timeout=20) as client,
    ):
        for _ in range(3):
            # A third connection would be refused.
            asking = asyncio.create_task(client.post(f"{portico.url}/acp/echo", json=INITIALIZE))
            await clock.expire(http.INITIALIZE_TIMEOUT)
            answer = await asking
            assert answer.status_code == 503
            assert "agent 'echo' was not ready for a connection within 60 s; try again" in answer.json()["error"]
        assert not _clients(portico)


def _clients(portico: RunningGateway) -> Any:
    return _find_owner(portico, http.HttpClients)._clients


@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.long)])
async def test_many_connections_over_both_transports(portico: RunningGateway, rounds: int) -> None:
    """20 clients at once, half of them over each transport."""
    turns = asyncio.Semaphore(8)

    async def over_socket(n: int) -> None:
        async with socket_to(portico) as socket:
            session = (await asked(socket, rpc("session/new", {"cwd": ".", "mcpServers": []})))["result"]["sessionId"]
            params = {"sessionId": session, "prompt": [{"type": "text", "text": f"editor {n}"}]}
            async with turns:
                assert (await asked(socket, rpc("session/prompt", params, 2)))["result"]["stopReason"] == "end_turn"

    async def over_http(n: int, client: httpx.AsyncClient) -> None:
        url = f"{portico.url}/acp/echo"
        connection_header = await initialized(client, url)
        async with client.stream("GET", url, headers={**connection_header, **STREAM}) as own:
            await client.post(url, json=rpc("session/list", {}), headers=connection_header)
            async for line in own.aiter_lines():
                if line.startswith("data"):
                    break
        assert (await client.delete(url, headers=connection_header)).status_code == 202

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(headers=BEARER, timeout=60, limits=limits, verify=False) as client, asyncio.timeout(120):
        for some in range(0, rounds * 10, 10):
            numbers = range(some, some + 10)
            await asyncio.gather(*map(over_socket, numbers), *(over_http(n, client) for n in numbers))
    assert len((await portico.client.get("/sessions")).json()["sessions"]) == rounds * 10


async def test_every_request_of_a_burst_is_answered(portico: RunningGateway) -> None:
    async with socket_to(portico) as socket:

        async def flood() -> None:
            for n in range(1, 1001):
                await socket.send(json.dumps(rpc("_x/none", {}, n)))

        sending = asyncio.create_task(flood())
        answered = set()
        async with asyncio.timeout(60):
            while len(answered) < 1000:
                answered.add(json.loads(await socket.recv())["id"])
        await sending
        assert answered == set(range(1, 1001))


async def test_invalid_messages_count_against_the_limit_of_messages_at_work(
    portico: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for message in ([], 3, {}, {"id": [], "method": "x"}, {"jsonrpc": "2.0", "id": 1, "method": {}}):
        monkeypatch.setattr(connection, "MAX_CONCURRENT_MESSAGES", 5)
        reads = asyncio.Event()

        async def send(_: dict[str, Any], reads: asyncio.Event = reads) -> None:
            await reads.wait()

        client = connection.Connection(portico.gateway, "echo", ADMINISTRATOR, send)
        for _ in range(5):
            await client.receive(message)
        sixth = asyncio.create_task(client.receive(message))
        assert await asyncio.wait([sixth], timeout=0.02) == (set(), {sixth}), message
        reads.set()
        await sixth
        await client.drain(10)
        await client.close()
