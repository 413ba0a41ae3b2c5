"""The number of open connections is limited, so that file descriptors are left for agents."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from gateway.application_tools.listener import Listener
from gateway.http import request_head
from gateway.http.file_descriptors import BASE_DESCRIPTORS, agent_connection_limit, client_connection_limit
from gateway.http.server import Server, listening_address, web_socket
from tests.gateway.http.asgi_server import Receive, Scope, Send, answer, serving, url_of
from tests.support.waiting import wait_until

LIMIT = 8


class App:
    """Responds with the path at once, apart from `/wait`: when `released` is set. `waiting` counts these requests."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await receive()
            return
        if scope["path"] == "/wait":
            self.waiting += 1
            await self.released.wait()
        await answer(scope, receive, send)


@contextmanager
def idle_connections(server: Server, count: int) -> Iterator[list[socket.socket]]:
    """Open connections that send nothing."""
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(listening_address(server))) for _ in range(count)]


async def get(server: Server, path: str = "/") -> httpx.Response:
    """Send a request on a connection of its own."""
    async with httpx.AsyncClient(timeout=30, verify=False) as client:
        return await client.get(url_of(server) + path)


async def test_one_more_connection_is_refused_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_head, "CLOSE_DELAY", 0.0)
    app = App()
    async with serving(app, LIMIT) as server:
        requests = [asyncio.create_task(get(server, "/wait")) for _ in range(LIMIT)]
        await wait_until(lambda: app.waiting == LIMIT)
        refused = await asyncio.gather(*(get(server) for _ in range(20)))
        assert {response.status_code for response in refused} == {503}
        assert "too many connections" in refused[0].json()["error"]
        await wait_until(lambda: len(server.server_state.connections) == LIMIT)
        app.released.set()
        assert {response.text for response in await asyncio.gather(*requests)} == {"/wait"}
        assert (await get(server)).text == "/"


async def test_idle_connections_are_closed_for_new_ones() -> None:
    async with serving(App(), LIMIT) as server:
        with idle_connections(server, 5 * LIMIT) as opened:
            for _ in range(3):
                assert (await get(server)).text == "/"
            await wait_until(lambda: len(server.server_state.connections) <= LIMIT)
            with suppress(ConnectionResetError):
                assert opened[0].recv(1) == b"", "the first one was closed"


async def test_a_request_that_is_there_when_its_connection_is_accepted_is_served() -> None:
    async with serving(App(), LIMIT) as server:
        with idle_connections(server, LIMIT):
            await wait_until(lambda: len(server.server_state.connections) == LIMIT)
            new = socket.create_connection(listening_address(server))
            # The event loop has not run since it was opened.
            new.sendall(b"GET /new HTTP/1.1\r\nHost: localhost\r\n\r\n")
            reader, writer = await asyncio.open_connection(sock=new)
            assert (await asyncio.wait_for(reader.readuntil(b"/new"), 60)).startswith(b"HTTP/1.1 200 ")
            writer.close()


async def test_a_connection_that_has_sent_a_request_is_closed_last() -> None:
    async with serving(App(), LIMIT) as server, httpx.AsyncClient(base_url=url_of(server), verify=False) as client:
        await client.get("/")
        (used,) = server.server_state.connections
        with idle_connections(server, 3 * LIMIT):
            assert (await get(server)).text == "/"
            assert used in server.server_state.connections


async def test_a_connection_whose_request_has_just_been_received_is_not_closed() -> None:
    """The new connection is accepted in the same step of the event loop."""
    app = App()
    async with serving(app, 1) as server:
        reader, writer = await asyncio.open_connection(*listening_address(server))
        await wait_until(lambda: server.server_state.connections)
        (busy,) = server.server_state.connections
        assert isinstance(busy, request_head.RequestHead)
        other = type(busy)(server.config, server.server_state, {})
        busy.data_received(b"GET /busy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        other.connection_made(Mock(asyncio.Transport))
        assert (await asyncio.wait_for(reader.readuntil(b"/busy"), 60)).startswith(b"HTTP/1.1 200 ")
        other.connection_lost(None)
        writer.close()


async def test_a_request_is_served_while_the_connection_closed_for_another_new_one_ends() -> None:
    """The other one is accepted in the step of the event loop that receives the request."""
    app = App()
    async with serving(app, 2) as server:
        with idle_connections(server, 1):
            await wait_until(lambda: server.server_state.connections)
            reader, writer = await asyncio.open_connection(*listening_address(server))
            port = writer.get_extra_info("sockname")[1]
            await wait_until(lambda: len(server.server_state.connections) == 2)
            by_port = {one.transport.get_extra_info("peername")[1]: one for one in server.server_state.connections}
            other = type(by_port[port])(server.config, server.server_state, {})
            other.connection_made(Mock(asyncio.Transport))
            by_port[port].data_received(b"GET /new HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).startswith(b"HTTP/1.1 200 ")
            other.connection_lost(None)
            writer.close()


async def test_websockets_count_and_are_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_head, "CLOSE_DELAY", 0.0)
    upgrade = "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    async with serving(App(), LIMIT, ws=web_socket) as server:
        with idle_connections(server, LIMIT) as opened:
            for client in opened:
                client.send(upgrade.encode())
                assert b" 101 " in await asyncio.to_thread(client.recv, 1000)
            assert (await get(server)).status_code == 503
            opened[1].close()
            await wait_until(lambda: len(server.server_state.connections) < LIMIT)
            assert (await get(server)).text == "/"


async def test_a_server_without_file_descriptors_accepts_again_once_there_are_some(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(App()) as server:
        address, soft, hard = listening_address(server), *resource.getrlimit(resource.RLIMIT_NOFILE)
        clients = [socket.socket() for _ in range(4)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (clients[0].fileno(), hard))
        try:
            with caplog.at_level(logging.CRITICAL, "asyncio"):
                asyncio.get_running_loop().set_exception_handler(lambda *_: None)
                for client in clients:
                    client.setblocking(False)
                    client.connect_ex(address)
                await asyncio.sleep(0.1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await wait_until(lambda: len(server.server_state.connections) == 4)
        assert (await get(server)).text == "/"
        for client in clients:
            client.close()


async def test_mcp_server_has_a_limit_of_its_own() -> None:
    class McpApp:
        __call__: Any = staticmethod(answer)

        async def close(self) -> None: ...

    listener = await Listener.start(McpApp(), LIMIT)  # type: ignore[arg-type]
    with idle_connections(listener, 5 * LIMIT):
        assert (await get(listener)).text == "/"
        await wait_until(lambda: len(listener.server_state.connections) <= LIMIT)
    await listener.stop()


@pytest.mark.parametrize(
    ("descriptors", "agents", "expected"), [(64, 16, 16), (256, 16, 64), (1024, 16, 752), (20000, 16, 19728)]
)
def test_limits_leave_file_descriptors_for_agents(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, agents: int, expected: int
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (descriptors, descriptors))
    assert client_connection_limit(agents) == expected
    assert expected + agent_connection_limit(agents) + min(BASE_DESCRIPTORS, descriptors // 2) <= descriptors
