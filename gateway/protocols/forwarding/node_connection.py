"""One HTTP/1.1 connection to another node, for one request after the other. httptools parses the responses.

Of an HTTP client it has what forwarding needs: the head of a response as it was sent, its body as it comes, and an end that is
noticed. It follows no redirect, decompresses nothing, keeps no cookies, and never sends a request twice.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

import httptools

MAX_HEAD = 64 * 1024
"""Bytes of the head of a response, and of what else is no body, such as trailers, before the next bytes of the body."""
SENT_AT_ONCE = 16 * 1024
"""Bytes of a body that is copied behind the head of its request."""
MAX_BUFFERED = 64 * 1024
"""Bytes of a body that were received and not yet read, after which the connection is not read."""
SILENCE = 25_000
"""Milliseconds for the acknowledgement of what was sent, or for a peer that reads nothing to read on."""


IDLE_SECONDS, INTERVAL_SECONDS, PROBES = 10, 5, 3
"""A connection on which nothing was received for so long is probed, so often, and closed after so many probes: 25 seconds."""
_KEEP_ALIVE = [
    # Darwin has the first one under another name.
    (getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", IDLE_SECONDS),
        ("TCP_KEEPALIVE", IDLE_SECONDS),
        ("TCP_KEEPINTVL", INTERVAL_SECONDS),
        ("TCP_KEEPCNT", PROBES),
    )
    if hasattr(socket, name)
]


def notice_silence(transport: asyncio.BaseTransport) -> None:
    """Have the system close a TCP connection once the machine at its other end is gone, at the latest after 25 seconds.

    Where the system has TCP_USER_TIMEOUT, a node that reads nothing for so long counts as gone too.
    """
    connected: socket.socket = transport.get_extra_info("socket")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
    # Linux sends no probes while it waits for the acknowledgement of what was sent.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE)


class NodeBroken(Exception):
    """The connection to the other node has ended. It may have begun to handle the request."""


class NodeConnection(asyncio.Protocol):
    """A connection, `idle` until a request is sent. `on_lost` is called with it once it is lost."""

    def __init__(self, on_lost: Callable[[NodeConnection], None]) -> None:
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._response: NodeResponse | None = None
        self._may_be_unsent = False
        self.idle_since = 0.0
        """The time of the client's clock at which the last response was complete."""

    @property
    def usable(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and self._response is None and not self._transport.is_closing()

    async def send(self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> NodeResponse:
        """Send a request, with a Content-Length, and return its response once its head is there. Raises NodeBroken."""
        transport = self._transport
        if transport is None or not self.usable:
            raise NodeBroken("the connection is not usable")
        response = self._response = NodeResponse(transport, has_body=method != "HEAD")
        # Of a TLS connection, asyncio does not tell how much is not sent.
        self._may_be_unsent = len(body) > SENT_AT_ONCE and transport.get_extra_info("sslcontext") is not None
        lines = [b"%b %b HTTP/1.1" % (method.encode("latin-1"), target), *(b"%b: %b" % header for header in headers)]
        head = b"%b\r\nContent-Length: %d\r\n\r\n" % (b"\r\n".join(lines), len(body))
        if len(body) <= SENT_AT_ONCE:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        # A stream may last for hours.
        del body
        await response.begun()
        return response

    def release(self) -> bool:
        """The response is not read any more. Whether another request can be sent; otherwise the connection is closed."""
        response, self._response = self._response, None
        if self._transport is None:
            return False
        unsent = self._may_be_unsent or self._transport.get_write_buffer_size() > 0
        if response is None or not response.reusable or unsent or self._transport.is_closing():
            # At once: the other node notices that the client is gone, and what is not sent yet is not needed.
            self._transport.abort()
            return False
        return True

    def abort(self) -> None:
        """Close the connection. A request that waits for its response raises NodeBroken."""
        if self._transport is not None:
            self._transport.abort()

    # -- called by the event loop -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        notice_silence(transport)

    def data_received(self, data: bytes) -> None:
        if self._response is not None:
            self._response.feed(data)
        elif self._transport is not None:
            # Nothing was asked.
            self._transport.abort()

    def eof_received(self) -> None:
        # The transport is closed only once the rest of the request is sent, for which the other node may never read.
        if self._response is not None:
            self._response.received_all()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._response is not None:
            self._response.lost(exc)
        self._on_lost(self)


class NodeResponse:
    """A response whose head is there: its status, and its headers as they were sent, with names in lower case.

    `read` returns its body. The `complete` response was received to its end, and nothing of it is left to be read.
    """

    def __init__(self, transport: asyncio.Transport, *, has_body: bool) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._transport, self._has_body = transport, has_body
        self._parser = httptools.HttpResponseParser(self)
        self._without_body = 0
        self._has_head = self._ended = self._keeps_alive = self._until_closed = self._paused = self._discarded = False
        self._parts: list[bytes] = []
        self._buffered = 0
        self._error: NodeBroken | None = None
        self._waiting: asyncio.Future[None] | None = None

    @property
    def complete(self) -> bool:
        return self._ended and not self._parts

    @property
    def reusable(self) -> bool:
        """Whether the connection can have another request: this response is complete, and the other node keeps it open."""
        return self.complete and self._keeps_alive and self._error is None and not self._discarded

    def discard(self) -> None:
        """This is not the response to the request. The connection is closed, since its next one might not be either."""
        self._discarded = True

    async def begun(self) -> None:
        """Wait for the head. Raises NodeBroken."""
        while not self._has_head:
            await self._more()

    async def read(self) -> bytes:
        """Return what has come of the body, at least a byte; nothing at its end. Raises NodeBroken if it ends too early."""
        while not self._parts and not self._ended:
            await self._more()
        parts, self._parts, self._buffered = self._parts, [], 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # -- called by the connection -----------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Parse what was received."""
        if self._error is not None:
            return
        if self._ended:
            # Behind the response.
            return self._fail("more than one response to a request")
        buffered = self._buffered
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return self._fail("not a response: another protocol")
        except httptools.HttpParserError as error:
            # The context of an error in a callback below is what that has raised.
            return self._fail(f"not a response: {error.__context__ or error}")
        self._without_body = 0 if self._buffered > buffered else self._without_body + len(data)
        if self._without_body > MAX_HEAD and not self._ended:
            self._fail(f"more than {MAX_HEAD} bytes of the head of a response, or of trailers")
        elif self._buffered > MAX_BUFFERED and not self._paused and not self._ended:
            self._paused = True
            self._transport.pause_reading()

    def received_all(self) -> None:
        """The other node has closed its side of the connection."""
        if self._error is None:
            self._ended = self._ended or self._until_closed
        self.lost(None)

    def lost(self, error: Exception | None) -> None:
        """The connection is lost."""
        if not self._ended and self._error is None:
            self._error = NodeBroken(f"the connection was lost: {error}" if error else "the connection was closed")
        self._wake()

    def _fail(self, problem: str) -> None:
        self._error = NodeBroken(problem)
        self._transport.abort()
        self._wake()

    # -- called by the parser ---------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._ended:
            raise ValueError("more than one response to a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        # Not those behind the body.
        if not self._has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 100:
            raise ValueError(f"the status {status}")
        if status < 200:
            # An interim response: the one that counts follows.
            self.headers.clear()
            return
        self.status, self._has_head = status, True
        self._until_closed = not any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers) and (
            # asyncio does not tell a TLS connection that was cut from one that was closed.
            self._transport.get_extra_info("sslcontext") is None
        )
        # The parser does not know that there is no body behind the head for a HEAD, and waits for it.
        self._ended = not self._has_body
        self._keeps_alive = self._has_body and self._parser.should_keep_alive()
        self._wake()

    def on_body(self, data: bytes) -> None:
        if self._ended:
            raise ValueError("a body behind the response to a HEAD")
        self._parts.append(data)
        self._buffered += len(data)
        self._wake()

    def on_message_complete(self) -> None:
        if self._has_head:
            self._ended = True
            self._wake()
