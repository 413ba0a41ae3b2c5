"""The number of open connections is limited: idle ones are closed for new ones, and the loop that accepts them does not spin."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from gateway.connection_limits import HeaderLimitProtocol
from gateway.embedded_server import EmbeddedServer, listening_address
from gateway.file_descriptors import BASE_DESCRIPTORS, agent_connection_limit, client_connection_limit
from gateway.mcp.listener import Listener
from tests.waiting import wait_until

Send = Callable[[dict[str, Any]], Awaitable[None]]
LIMIT = 8


class App:
    """Answers at once, apart from `/wait`, which it answers when `released` is set. `waiting` counts these requests."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.waiting = 0

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Send) -> None:
        if scope["path"] == "/wait":
            self.waiting += 1
            await self.released.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serve(app: Any, limit: int = LIMIT) -> AsyncIterator[EmbeddedServer]:
    """Run a server with at most `limit` connections."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, http=HeaderLimitProtocol, lifespan="off", log_config=None)
    server = EmbeddedServer(config, limit)
    serving = asyncio.create_task(server.serve())
    await wait_until(lambda: server.started)
    try:
        yield server
    finally:
        server.should_exit = server.force_exit = True
        await serving


@contextmanager
def idle_connections(server: EmbeddedServer, count: int) -> Iterator[list[socket.socket]]:
    """Open connections that send nothing."""
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(listening_address(server))) for _ in range(count)]


async def get(server: EmbeddedServer, path: str = "/") -> httpx.Response:
    """Send a request on a connection of its own."""
    host, port = listening_address(server)
    async with httpx.AsyncClient(timeout=30, verify=False) as client:
        return await client.get(f"http://{host}:{port}{path}")


async def test_idle_connections_are_closed_for_new_ones(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "gateway.embedded_server")
    async with serve(App()) as server:
        with idle_connections(server, 5 * LIMIT) as opened:
            for _ in range(3):
                assert (await get(server)).text == "ok"
            assert len(server.server_state.connections) <= LIMIT
            assert opened[0].recv(1) == b"", "the first one was closed"
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        f"all {LIMIT} connections are in use: idle ones are closed"
    ]


async def test_connection_that_has_sent_a_request_is_closed_last() -> None:
    async with serve(App()) as server:
        host, port = listening_address(server)
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", verify=False) as client:
            await client.get("/")
            used = next(iter(server.server_state.connections))
            with idle_connections(server, 3 * LIMIT):
                assert (await get(server)).text == "ok"
                assert used in server.server_state.connections


async def test_connection_is_refused_while_all_others_have_requests() -> None:
    app = App()
    async with serve(app) as server:
        requests = [asyncio.create_task(get(server, "/wait")) for _ in range(LIMIT)]
        await wait_until(lambda: app.waiting == LIMIT)
        refused = await asyncio.gather(*(get(server) for _ in range(20)))
        assert {answer.status_code for answer in refused} == {503}
        assert "too many connections" in refused[0].json()["error"]
        assert refused[0].headers["retry-after"] == "5"
        app.released.set()
        assert {answer.text for answer in await asyncio.gather(*requests)} == {"ok"}
        assert (await get(server)).text == "ok"


async def test_missing_file_descriptors_are_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while connections wait to be accepted: their socket stays readable."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("gateway.embedded_server.ACCEPT_RETRY", 0.05)
    async with serve(App()) as server:
        address, soft, hard = listening_address(server), *resource.getrlimit(resource.RLIMIT_NOFILE)
        clients = [socket.socket() for _ in range(4)]
        free = clients[0].fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            for client in clients:
                client.setblocking(False)
                client.connect_ex(address)
            before = asyncio.get_running_loop().time()
            await asyncio.sleep(0.3)
            assert asyncio.get_running_loop().time() - before < 5
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await wait_until(lambda: len(server.server_state.connections) == 4)
        assert (await get(server)).text == "ok"
        for client in clients:
            client.close()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1 and "Too many open files" in messages[0]


async def test_mcp_server_has_a_limit_of_its_own() -> None:
    class McpApp(App):
        async def close(self) -> None: ...

    listener = await Listener.start(McpApp(), LIMIT)  # type: ignore[arg-type]
    with idle_connections(listener, 5 * LIMIT):
        assert (await get(listener)).text == "ok"
        assert len(listener.server_state.connections) <= LIMIT
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
