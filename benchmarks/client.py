"""A client with little overhead: raw HTTP/1.1 on an asyncio socket. Responses are parsed after the time is measured."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

STREAM_END = b"0\r\n\r\n"
TIMEOUT = 120.0
"""Maximum time for a response, in seconds."""


class RequestFailed(Exception):
    """The response is an error, or the connection was closed before its end."""


@dataclass
class Response:
    """A response with its times: `seconds` to the last byte, `first` to the first occurrence of `look_for`.

    `arrivals` are the parts in which it was received: the bytes up to the end of each, and its time (`time.perf_counter`).
    """

    raw: bytes
    seconds: float
    first: float | None
    arrivals: Sequence[tuple[int, float]] = ()

    @property
    def body(self) -> bytes:
        """The body without chunk sizes. Raises RequestFailed for an error."""
        head, _, rest = self.raw.partition(b"\r\n\r\n")
        if not head.split(b" ", 2)[1].startswith(b"2"):
            raise RequestFailed(self.raw[:2000].decode("utf-8", "replace"))
        return _joined(rest) if b"transfer-encoding: chunked" in head.lower() else rest


class _Reader(asyncio.Protocol):
    """Receives one response after the other."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._response: asyncio.Future[Response] | None = None
        self._look_for, self._tail = b"", b""
        self._first: float | None = None
        self._parts: list[bytes] = []
        self._arrivals: list[tuple[int, float]] = []
        self._length: int | None = None
        self._got, self._sent = 0, 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send(self, request: bytes, look_for: bytes) -> asyncio.Future[Response]:
        """Send a request. The future is resolved when the last byte of the response is received."""
        self._look_for, self._first = look_for, None
        self._parts, self._tail, self._length, self._got = [], b"", None, 0
        self._arrivals = []
        self._response = asyncio.get_running_loop().create_future()
        self._sent = time.perf_counter()
        self.transport.write(request)
        return self._response

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._parts.append(data)
        if self._first is None and self._look_for and self._look_for in self._tail + data:
            self._first = now - self._sent
        self._tail = (self._tail + data[-64:])[-64:]
        if self._length is None:
            self._length = _length(b"".join(self._parts))
        self._got += len(data)
        self._arrivals.append((self._got, now))
        done = self._tail.endswith(STREAM_END) if self._length == 0 else self._length is not None and self._got >= self._length
        if done and self._response is not None and not self._response.done():
            self._response.set_result(Response(b"".join(self._parts), now - self._sent, self._first, self._arrivals))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(RequestFailed(f"the connection was closed before the end of the response: {exc}"))


class Connection:
    """One keep-alive connection to a port of 127.0.0.1, one request at a time."""

    def __init__(self, port: int, key: str) -> None:
        self._port, self._key = port, key
        self._reader: _Reader | None = None

    async def ready(self) -> _Reader:
        """Connect, if there is no connection yet or the server has closed it because it was idle."""
        if self._reader is None or self._reader.transport.is_closing():
            _, self._reader = await asyncio.get_running_loop().create_connection(_Reader, "127.0.0.1", self._port)
        return self._reader

    async def request(self, method: str, path: str, body: object = None, look_for: bytes = b"") -> Response:
        """Send a request and return the response; `look_for` is the text whose first occurrence is timed."""
        reader = await self.ready()
        return await asyncio.wait_for(reader.send(encode_request(method, path, body, self._key), look_for), TIMEOUT)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.transport.close()


@asynccontextmanager
async def connection(port: int, key: str = "") -> AsyncIterator[Connection]:
    """Yield a connection, and close it afterwards."""
    opened = Connection(port, key)
    try:
        yield opened
    finally:
        opened.close()


async def read_slowly(port: int, request: bytes, seconds: float, size: int = 1024, pause: float = 0.01) -> tuple[bytes, float]:
    """Return the response to a request and its time in seconds. For `seconds`, at most `size` bytes are read every `pause`."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        # A small receive buffer, so that unread data waits in the server and not in the kernel.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        began = time.perf_counter()
        await loop.sock_sendall(sock, request)
        got = bytearray()
        while not got.endswith(STREAM_END):
            slow = time.perf_counter() - began < seconds
            data = await asyncio.wait_for(loop.sock_recv(sock, size if slow else 256 * 1024), TIMEOUT)
            if not data:
                raise RequestFailed("the connection was closed before the end of the response")
            got += data
            await asyncio.sleep(pause if slow else 0)
        return bytes(got), time.perf_counter() - began


def encode_request(method: str, path: str, body: object = None, key: str = "") -> bytes:
    """Return the bytes of a request with a JSON body."""
    data = b"" if body is None else json.dumps(body).encode()
    auth = f"Authorization: Bearer {key}\r\n" if key else ""
    content = f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{auth}{content}\r\n".encode() + data


def _length(got: bytes) -> int | None:
    """Return the length of the whole response, 0 for a stream, None while the headers are incomplete."""
    head, end, _ = got.partition(b"\r\n\r\n")
    if not end:
        return None
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(head) + len(end) + int(line.split(b":")[1])
    return len(head) + len(end) if head.split(b" ", 2)[1] == b"204" else 0


def _joined(chunked: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while True:
        end = chunked.index(b"\r\n", at)
        size = int(chunked[at:end], 16)
        if not size:
            return b"".join(parts)
        parts.append(chunked[end + 2 : end + 2 + size])
        at = end + 4 + size
