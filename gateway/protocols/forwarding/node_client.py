"""The HTTP client by which a node sends requests to other nodes. Only a node imports it.

`httpcore2` is the transport of `httpx2`, which comes with `mcp`. It sends the target of a request as it is: a client that
normalizes addresses would send another one than was signed.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpcore2
from httpcore2 import Response

__all__ = ["NodeBroken", "NodeClient", "NodeUnreachable", "Response"]

CONNECT_TIMEOUT = 3.0
"""Seconds for a connection to another node."""
WRITE_TIMEOUT = 30.0
"""Seconds in which another node reads something of a request."""
IDLE_SECONDS = 30.0
"""Seconds that a connection without a request is kept. The server closes one later."""
MAX_IDLE = 64
"""Connections without a request that are kept."""
_KEEP_ALIVE_PROBES = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), seconds)
        # Darwin calls the first one TCP_KEEPALIVE.
        for name, seconds in (("TCP_KEEPIDLE", 10), ("TCP_KEEPALIVE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
)
"""A machine that is gone without a word is noticed after 25 seconds."""


class NodeUnreachable(Exception):
    """There is no connection to the other node. Nothing of the request was sent."""


class NodeBroken(Exception):
    """The connection to the other node has ended. It may have begun to handle the request."""


class NodeClient:
    """Connections to all other nodes, kept for further requests."""

    def __init__(self) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            max_connections=None,
            max_keepalive_connections=MAX_IDLE,
            keepalive_expiry=IDLE_SECONDS,
            socket_options=_KEEP_ALIVE_PROBES,
        )

    @asynccontextmanager
    async def request(
        self, address: str, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> AsyncIterator[Response]:
        """Send a request to a node (`address` is its base URL) and give the head of its response; `chunks` reads the body.

        The connection is closed if the body is not read to its end. Raises NodeUnreachable and NodeBroken.
        """
        parts = urlsplit(address)
        url = httpcore2.URL(scheme=parts.scheme, host=parts.hostname or "", port=parts.port, target=target)
        sent = [(b"Host", parts.netloc.encode()), (b"Content-Length", b"%d" % len(body)), *headers]
        timeouts = {"connect": CONNECT_TIMEOUT, "write": WRITE_TIMEOUT}
        request = httpcore2.Request(method, url, headers=sent, content=_once([body]), extensions={"timeout": timeouts})
        del body
        try:
            response = await self._pool.handle_async_request(request)
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
            raise NodeUnreachable(_text(error)) from error
        except _BROKEN as error:
            raise NodeBroken(_text(error)) from error
        try:
            yield response
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()


async def _once(parts: list[bytes]) -> AsyncIterator[bytes]:
    # The pool keeps the request, and with it all that it has, until the response is complete.
    while parts:
        yield parts.pop()


async def chunks(response: Response) -> AsyncIterator[bytes]:
    """Yield the body of a response as it comes. Raises NodeBroken if the connection ends before it is complete."""
    try:
        async for chunk in response.aiter_stream():
            yield chunk
    except _BROKEN as error:
        raise NodeBroken(_text(error)) from error


_BROKEN = (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
