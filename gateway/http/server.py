"""uvicorn servers that leave signals alone, and the address that they listen on."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from gateway.http.file_descriptors import accept_at_once
from gateway.http.request_head import RequestHead


class Server(uvicorn.Server):
    """A server in an event loop whose signals somebody else handles."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn has no setting for it.
        yield


def server_config(app: ASGIApp, max_connections: int, **settings: Any) -> uvicorn.Config:
    """Return the settings that all servers have in common, and the given ones of uvicorn.

    `max_connections` is how many connections may be open at the same time; one more gets a 503.
    """

    class Connection(RequestHead):
        limit = max_connections

    return uvicorn.Config(
        app,
        http=Connection,
        backlog=accept_at_once(),
        log_config=None,
        access_log=False,
        server_header=False,
        **settings,
    )


def web_socket(**settings: Any) -> asyncio.Protocol:
    """Return uvicorn's protocol of a WebSocket, for its setting `ws`. The first WebSocket imports it."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol  # 0.7 MB, 8 ms

    return WebSocketsSansIOProtocol(**settings)


async def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Return sockets with the address, which do not listen yet: one for each address of a name. Raises OSError."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    try:
        return [socket.socket(fileno=os.dup(one.fileno())) for one in server.sockets]
    finally:
        server.close()


def listening_address(server: uvicorn.Server) -> tuple[str, int]:
    """Return the host and port of the first listening socket of a server that has started."""
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    return host, port
