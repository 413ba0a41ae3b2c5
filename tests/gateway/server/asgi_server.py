"""A server of an application that a test writes, with the protocols of the gateway's server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from gateway.connection_limits import HeaderLimitProtocol
from gateway.embedded_server import EmbeddedServer, listening_address
from gateway.websocket_limits import WebSocketLimitProtocol
from tests.waiting import wait_until

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class _Recorded:
    """A transport whose writes are recorded."""

    def __init__(self, transport: Any, writes: list[bytes]) -> None:
        self._transport, self._writes = transport, writes

    def write(self, data: bytes) -> None:
        self._writes.append(bytes(data))
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Server:
    """A running server, the writes of its transports in order, and its connections."""

    def __init__(self, app: App, **options: Any) -> None:
        writes, connections = list[bytes](), list[HeaderLimitProtocol]()

        class Protocol(HeaderLimitProtocol):
            def connection_made(self, transport: Any) -> None:
                connections.append(self)
                super().connection_made(_Recorded(transport, writes))  # type: ignore[arg-type]

        self.writes, self.connections = writes, connections
        config = uvicorn.Config(
            app, host="127.0.0.1", port=0, http=Protocol, ws=WebSocketLimitProtocol, lifespan="off", log_config=None, **options
        )
        self.server = EmbeddedServer(config, 100)

    @property
    def url(self) -> str:
        host, port = listening_address(self.server)
        return f"http://{host}:{port}"


@asynccontextmanager
async def serving(app: App, **options: Any) -> AsyncIterator[Server]:
    """Run a server. At the end nothing may have failed in the event loop."""
    failures = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    found = Server(app, **options)
    task = asyncio.create_task(found.server.serve())
    await wait_until(lambda: found.server.started)
    try:
        yield found
    finally:
        found.server.should_exit = found.server.force_exit = True
        await task
    assert failures == []


async def begin(send: Send, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [*headers]})


async def body(send: Send, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with the path, in one step."""
    path = scope["path"].encode()
    await begin(send, (b"content-length", b"%d" % len(path)))
    await body(send, path, more=False)
