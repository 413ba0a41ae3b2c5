"""Connections to the other nodes, kept for further requests."""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import SplitResult, urlsplit

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.protocols.forwarding.node_connection import NodeBroken, NodeConnection, NodeResponse

__all__ = ["NodeBroken", "NodeClient", "NodeResponse", "NodeUnreachable"]

CONNECT_TIMEOUT = 3.0
"""Seconds for a connection to another node, TLS included."""
IDLE_SECONDS = 30.0
"""Seconds that a connection without a request is used again. The server closes one later."""
ADDRESS_DELAY = 0.25
"""Seconds after which the next address of a host name is tried beside the one before (RFC 8305)."""


class NodeUnreachable(Exception):
    """There is no connection to the other node. Nothing of the request was sent."""


class NodeClient:
    """Sends requests to nodes. Each has a connection for itself while it is at work."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._idle: defaultdict[str, list[NodeConnection]] = defaultdict(list)
        """By the address of the node, the last one that was used at the end."""
        self._all: set[NodeConnection] = set()
        self._connecting: set[asyncio.Task[NodeConnection]] = set()
        self._tls: ssl.SSLContext | None = None
        self._closed = False

    @asynccontextmanager
    async def request(
        self, address: str, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> AsyncIterator[NodeResponse]:
        """Send a request to a node (`address` is its base URL) and give its response, whose head is there.

        `headers` are sent as they are, and `Host` and `Content-Length` with them. The connection is closed if the body is not
        read to its end. Raises NodeUnreachable and NodeBroken.
        """
        connection = self._idle_connection(address) or await self._connect(address)
        try:
            host = (b"Host", urlsplit(address).netloc.encode("ascii"))
            sending = connection.send(method, target, [host, *headers], body)
            del body
            yield await sending
        finally:
            if connection.release():
                connection.idle_since = self._clock.monotonic()
                self._idle[address].append(connection)

    def _idle_connection(self, address: str) -> NodeConnection | None:
        idle, oldest = self._idle[address], self._clock.monotonic() - IDLE_SECONDS
        while idle:
            connection = idle.pop()
            if connection.idle_since >= oldest and connection.usable:
                return connection
            connection.abort()
        return None

    async def _connect(self, address: str) -> NodeConnection:
        if self._closed:
            raise NodeUnreachable("this node shuts down")
        url = urlsplit(address)
        made = partial(NodeConnection, partial(self._lost, address))
        # A task that goes on when this one is cancelled: Python 3.11 would lose a socket that is just connected.
        connecting = asyncio.create_task(self._open(url, made))
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)
        try:
            connection = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(_abort)
            raise
        except TimeoutError:
            raise NodeUnreachable(f"no connection within {CONNECT_TIMEOUT:g} seconds") from None
        # ValueError: the port or the name cannot be one.
        except (OSError, ValueError) as error:
            raise NodeUnreachable(str(error) or type(error).__name__) from error
        if self._closed:
            connection.abort()
            raise NodeUnreachable("this node shuts down")
        if not connection.usable:
            # The event loop has noticed it before this task went on.
            raise NodeUnreachable("the connection was closed at once")
        self._all.add(connection)
        return connection

    async def _open(self, url: SplitResult, made: Callable[[], NodeConnection]) -> NodeConnection:
        async with self._clock.timeout(CONNECT_TIMEOUT):
            tls = await self._tls_context(url)
            _, connection = await asyncio.get_running_loop().create_connection(
                made,
                url.hostname or "",
                url.port or (443 if url.scheme == "https" else 80),
                ssl=tls,
                # asyncio (3.11) does not close a connection whose wait is cancelled just before the handshake begins.
                ssl_handshake_timeout=CONNECT_TIMEOUT if tls else None,
                happy_eyeballs_delay=ADDRESS_DELAY,
            )
            return connection

    async def _tls_context(self, url: SplitResult) -> ssl.SSLContext | None:
        if url.scheme == "https" and self._tls is None:
            # In a thread: it reads all certificates of the system.
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        return self._tls if url.scheme == "https" else None

    def _lost(self, address: str, connection: NodeConnection) -> None:
        self._all.discard(connection)
        idle = self._idle.get(address, [])
        if connection in idle:
            idle.remove(connection)

    async def close(self) -> None:
        """Close all connections. Takes at most CONNECT_TIMEOUT, for those that are just made."""
        self._closed = True
        for connection in list(self._all):
            connection.abort()
        if self._connecting:
            await asyncio.wait(self._connecting)


def _abort(connecting: asyncio.Task[NodeConnection]) -> None:
    """Close a connection that nobody waits for."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().abort()
