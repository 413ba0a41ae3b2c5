"""Requests to the other nodes, by aiohttp. Its connections are kept for further requests."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
from yarl import URL

from gateway.cluster.forwarding.silent_peers import notice_silence

CONNECT_TIMEOUT = 3.0
"""Seconds for a connection to another node, TLS included."""
IDLE_SECONDS = 30.0
"""Seconds that a connection without a request is kept. The server closes one later."""
_NOT_ADDED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that aiohttp adds to requests without them."""


class NodeUnreachable(Exception):
    """There is no connection to the other node. Nothing of the request was sent."""


class NodeBroken(Exception):
    """The connection to the other node has ended. It may have begun to handle the request."""


class NodeClient:
    """Sends requests to nodes. Each has a connection for itself while it is at work. `connect_timeout` is in seconds."""

    def __init__(self, connect_timeout: float = CONNECT_TIMEOUT) -> None:
        self._connect_timeout = connect_timeout
        self._session: aiohttp.ClientSession | None = None
        self.closed = False

    @asynccontextmanager
    async def request(
        self, address: str, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request to a node (`address` is its base URL) and give its response, whose head is there.

        The connection is closed if the body is not read to its end. Raises NodeUnreachable and NodeBroken, the latter also while
        the body is read.
        """
        # aiohttp encodes them as UTF-8.
        named = [(name.decode("ascii"), value.decode("utf-8", "backslashreplace")) for name, value in headers]
        data = None
        if body:
            named.append(("Content-Length", str(len(body))))
            data = _once([body])
        del body
        # As it is: a normalized target is not the one that was signed.
        url = URL(address + target.decode("ascii"), encoded=True)
        try:
            async with self._opened().request(method, url, headers=named, data=data, allow_redirects=False) as response:
                yield response
        except aiohttp.ClientError as error:
            raise _broken(error) from error

    def _opened(self) -> aiohttp.ClientSession:
        if self.closed:
            raise NodeUnreachable("this node shuts down")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, socket_factory=_socket),
                timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_timeout),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=_NOT_ADDED,
                middlewares=[_send_once],
            )
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        self.closed = True
        if self._session is not None:
            await self._session.close()


async def _send_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Raise errors that aiohttp does not know: after its own it would send a GET or a DELETE again."""
    try:
        return await send(request)
    # UnicodeError: the host cannot be a name.
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, UnicodeError) as error:
        raise NodeUnreachable(str(error)) from error
    except aiohttp.ClientError as error:
        raise _broken(error) from error


async def _once(parts: list[bytes]) -> AsyncIterator[bytes]:
    """Yield a body, and keep no reference to it: the response to it may last for hours."""
    while parts:
        yield parts.pop()


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    notice_silence(made)
    return made


def _broken(error: aiohttp.ClientError) -> NodeBroken:
    # The texts of other errors have what was received.
    return NodeBroken(str(error) if isinstance(error, OSError) else type(error).__name__)
