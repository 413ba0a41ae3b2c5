"""A server of an application that a test writes, with the limits of the gateway's servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.http.request_body import RequestBody
from gateway.http.request_head import request_arrived
from gateway.http.server import Server, listening_address, server_config
from tests.support.waiting import wait_until

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 1 << 20


@asynccontextmanager
async def serving(app: App, max_connections: int = 100, clock: Clock = SYSTEM_CLOCK, **settings: Any) -> AsyncIterator[Server]:
    """Run a server whose requests have at most MAX_BODY bytes. At the end nothing may have failed in the event loop."""

    async def limited(scope: Any, receive: Any, send: Any) -> None:
        with request_arrived():
            if scope["type"] != "http":
                return await app(scope, receive, send)
            body = RequestBody(scope, receive, send, MAX_BODY, "limit", clock)
            await app(scope, body.receive, body.send)  # type: ignore[arg-type]

    failures = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    settings = {"host": "127.0.0.1", "port": 0, "lifespan": "off", **settings}
    server = Server(server_config(limited, max_connections, **settings))
    task = asyncio.create_task(server.serve())
    await wait_until(lambda: server.started)
    try:
        yield server
    finally:
        server.should_exit = server.force_exit = True
        await task
    assert failures == []


def url_of(server: Server) -> str:
    host, port = listening_address(server)
    return f"http://{host}:{port}"


async def begin(send: Send, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [*headers]})


async def body(send: Send, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with the path, in one step."""
    path = scope["path"].encode()
    await begin(send, (b"content-length", b"%d" % len(path)))
    await body(send, path, more=False)
