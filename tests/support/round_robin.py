"""A proxy on loopback that gives each new request to the next of several servers, as one before the nodes of a cluster does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from urllib.parse import urlsplit
from weakref import WeakSet

_HEAD_LIMIT = 256 * 1024
_LINGER_SECONDS = 2.0
_CONNECTION = re.compile(rb"\r\nconnection:[^\r]*", re.IGNORECASE)
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


class RoundRobin:
    """Passes bytes and ends of them on, both ways. Each connection has one request: the server is asked to close it then."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._next = cycle([(str(parts.hostname), int(parts.port or 80)) for parts in map(urlsplit, urls)])
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: WeakSet[asyncio.StreamWriter] = WeakSet()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on."""
        task = asyncio.current_task()
        assert task is not None
        self._writers.add(writer)
        self._connections.add(task)
        try:
            await _forward(reader, writer, next(self._next))
        except (OSError, asyncio.CancelledError):
            # The client or the server has cut its connection; the other one sees that.
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    async def close(self) -> None:
        """End the connections that are left."""
        left = list(self._connections)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for writer in list(self._writers):
            # A client that does not read keeps a connection open that is being closed.
            writer.transport.abort()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: tuple[str, int]) -> None:
    head = await _head(reader)
    if not head:
        return
    from_server, to_server = await asyncio.open_connection(*server, limit=_HEAD_LIMIT)
    try:
        to_server.write(head)
        down = asyncio.create_task(_copy(from_server, writer))
        up = asyncio.create_task(_copy_up(reader, to_server))
        up.add_done_callback(lambda ended: down.cancel() if ended.cancelled() or ended.exception() else None)
        try:
            await down
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
    finally:
        to_server.transport.abort()
    # Closed with bytes that are not read, the connection would be reset, and the response with it.
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            while await reader.read(64 * 1024):
                pass


async def _head(reader: asyncio.StreamReader) -> bytes:
    """The first request up to its body, with what closes the connection after it. What has no end is not changed."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await reader.read(error.consumed)
    if _UPGRADE.search(head):
        return head
    return _CONNECTION.sub(b"", head[:-4]) + b"\r\nConnection: close\r\n\r\n"


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while found := await reader.read(64 * 1024):
        writer.write(found)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _copy_up(reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
    """Copy what a client sends. A server that closes before it has all has responded: its response is passed on."""
    while found := await reader.read(64 * 1024):
        try:
            server.write(found)
            await server.drain()
        except OSError:
            return
    if server.can_write_eof():
        with suppress(OSError):
            server.write_eof()


@asynccontextmanager
async def round_robin(urls: Sequence[str]) -> AsyncIterator[str]:
    """Run a proxy before these servers, and give its URL."""
    proxy = RoundRobin(urls)
    server = await asyncio.start_server(proxy.connected, "127.0.0.1", 0, limit=_HEAD_LIMIT)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await proxy.close()
