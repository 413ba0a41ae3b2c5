"""What uvicorn lacks: limits of a request head, half-closed clients, and one system call for writes that follow each other.

It depends on undocumented parts of uvicorn. pyproject.toml admits only the minor versions of uvicorn and httptools that it was
tested with, and tests/gateway/server/test_uvicorn_internals.py checks each name below against the installed
version. Used of uvicorn:

* `uvicorn.protocols.http.httptools_impl.HttpToolsProtocol`, the base class of `HeaderLimitProtocol`: uvicorn limits the request
  head for its h11 parser only (`h11_max_incomplete_event_size`). Overridden: `connection_made`, `connection_lost`,
  `data_received`, `on_message_begin`, `on_url`, `on_header`, `on_headers_complete`, `on_body`, `on_message_complete`,
  `on_response_complete`, `send_400_response`, and `handle_websocket_upgrade`, which gives the WebSocket's protocol the
  `transport`. Read: `transport`, `loop`, `headers`, `cycle` with its `response_started` and `response_complete`,
  `timeout_keep_alive`; called: `timeout_keep_alive_handler`; set: `timeout_keep_alive_task`, and of a cycle `disconnected`,
  `message_event` and `waiting_for_100_continue`.
  `STATUS_LINE` of the same module gives the first line of an error response. asyncio closes a connection whose client has closed
  its side, which uvicorn takes for a client that is gone: overridden `eof_received`; set `scope["extensions"]`; read of the cycle
  `scope`, `more_body` and `chunked_encoding`; set its `keep_alive`.

Used of httptools: an exception that a callback of `HttpRequestParser` raises becomes an `HttpParserError`, which uvicorn answers
with `send_400_response`.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from collections.abc import Iterator
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from drivers.runtime.clock import SYSTEM_CLOCK, Clock, Timer
from gateway.asgi_extensions import CLOSE_AT_EOF, EVENT_STREAM, WATCH_DISCONNECT
from gateway.coalesced_writes import CoalescedWrites

MAX_HEAD_BYTES = 64 * 1024
"""Size limit of a request line with its headers."""
MAX_HEADERS = 100
NODE_SIGNATURE = b"portico-node"
"""The first header of a request that another node forwards, which adds some to those of its client."""
NODE_HEADERS, NODE_HEAD_BYTES = 4, 4096
"""What such a request may have more."""
MAX_PIPELINED = 100
"""Requests of one connection that wait for their responses. One of 18 bytes is held with all its objects, before its key is
checked."""
HEAD_SECONDS = 30.0
"""Time limit for receiving the request line and the headers: a connection without a request costs a file descriptor."""
HTTP_CLOSE_DELAY = 2.0
"""Seconds between an error response and the close. Closing at once, with unread input, could lose the response."""
PROBE_DELAYS = (0.02, 0.1, 0.5, 2.0)
"""Seconds between the first probes of a connection whose client has closed its side; later ones follow after PROBE_INTERVAL."""
PROBE_INTERVAL = 5.0
EVENT_STREAM_COMMENT = b"3\r\n:\n\n\r\n"
"""A chunk with an empty comment of an event stream."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

TOO_LARGE = f"the request line and the headers may have {MAX_HEAD_BYTES} bytes and {MAX_HEADERS} headers; send less"
TOO_SLOW = f"the request line and the headers did not arrive within {HEAD_SECONDS:.0f} seconds"
TOO_MANY = f"{MAX_PIPELINED} requests may wait for their responses on one connection; read the responses before you send more"
UPGRADE_TOO_EARLY = (
    "a WebSocket may begin once the requests before it on its connection have their responses; use another connection"
)
INVALID = "the request is not valid HTTP"


class _HeadTooLarge(Exception):
    """Raised in the parser's callbacks; the parser stops."""


class _TooManyRequests(Exception):
    """Raised in the parser's callbacks; the parser stops."""


class _Watch:
    """The function WATCH_DISCONNECT of one request."""

    def __init__(self, protocol: HeaderLimitProtocol) -> None:
        self._protocol, self.called = protocol, False

    def __call__(self) -> None:
        self.called = True
        self._protocol.close_if_gone()


class HeaderLimitProtocol(HttpToolsProtocol):
    """Answers 431 to a request head that is too large, 408 to one that is too slow, and 400 to what is not HTTP and to too many
    requests that wait for their responses. The errors have JSON bodies.

    A client that has closed its side of the connection behind a request still gets the response. One that has closed the whole
    connection looks the same until it is sent something: in an event stream a comment, and before a response for which the
    application has called `scope["extensions"][WATCH_DISCONNECT]` an interim response (100), which clients ignore (RFC 9110,
    15.2). HTTP/1.0 has none: there the client is taken for gone.
    """

    clock: Clock = SYSTEM_CLOCK
    """The clock of HEAD_SECONDS, for all connections: uvicorn makes the protocols."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = self._unparsed_bytes = 0
        self._head_timer: Timer | None = None
        self._max_head_bytes, self._max_headers = MAX_HEAD_BYTES, MAX_HEADERS
        self._rejected = self._half_closed = False
        self._in_head = self._in_body = False
        """Where the parser is. Between two requests it is in neither of them. Trailers are behind the body and in it."""
        self._progressed = False
        """Whether a head or some of a body was complete in what was received last."""
        self._unanswered = deque[Any]()
        """The cycles whose responses are not complete, in order: pipelined requests wait for each other."""
        self._probe_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._writes = CoalescedWrites(transport, self.loop)
        super().connection_made(self._writes)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        # uvicorn does it for the last request only.
        self._disconnect()
        super().connection_lost(exc)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Called when the client has closed its side; the connection stays open if the result is true."""
        request = self.cycle
        # asyncio closes the transport below, which discards what is written to it later.
        self._writes.flush()
        if self._rejected or self._awaits_head() or request is None or request.more_body:
            return None
        if CLOSE_AT_EOF in request.scope["extensions"] or self._cannot_notice():
            return None
        self._half_closed = True
        request.keep_alive = False
        self._probe(iter(PROBE_DELAYS))
        return True

    def data_received(self, data: bytes) -> None:
        if self._rejected:
            return
        was_in_body, self._progressed = self._in_body, False
        super().data_received(data)
        if self._rejected:
            return
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return self._stop_head_timer()
        # The parser calls back for complete headers and trailers only: an endless one would not be counted.
        self._unparsed_bytes = 0 if self._progressed else self._unparsed_bytes + len(data)
        if self._unparsed_bytes > MAX_HEAD_BYTES:
            return self._reject(431, TOO_LARGE)
        if not self._awaits_head():
            return self._stop_head_timer()
        if was_in_body and not self._in_body:
            # This was the rest of the body of a request that has its response already.
            self._stop_head_timer()
            if not self._in_head:
                self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
                return
        self._start_head_timer()

    def handle_websocket_upgrade(self) -> None:
        if self._answering() is not None:
            # uvicorn would give the connection to the WebSocket at once, and the responses would come between its frames.
            return self._reject(400, UPGRADE_TOO_EARLY)
        # WebSockets join their own frames.
        self.transport = self._writes.direct
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._max_head_bytes, self._max_headers = MAX_HEAD_BYTES, MAX_HEADERS
        self._in_head = True
        self.scope["extensions"] = {WATCH_DISCONNECT: _Watch(self)}  # type: ignore[dict-item]

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if self._in_body:
            # A trailer, which would be one of the headers of a request that is being handled.
            return
        super().on_header(name, value)
        if name == NODE_SIGNATURE:
            self._max_head_bytes, self._max_headers = MAX_HEAD_BYTES + NODE_HEAD_BYTES, MAX_HEADERS + NODE_HEADERS
        if len(self.headers) > self._max_headers:
            raise _HeadTooLarge

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._progressed = False, True, True
        before = self.cycle
        super().on_headers_complete()
        while self._unanswered and self._unanswered[0].response_complete:
            self._unanswered.popleft()
        if self.cycle is not before:
            self._unanswered.append(self.cycle)
        if len(self._unanswered) > MAX_PIPELINED:
            raise _TooManyRequests

    def on_body(self, body: bytes) -> None:
        self._progressed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._progressed = False, True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        # Not after what is done at the end of a request: its line of the access log takes 0.25 ms (2026-11-26).
        self._writes.flush()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for every error of the parser, exceptions of the callbacks above included."""
        if self._head_bytes > self._max_head_bytes or len(self.headers or ()) > self._max_headers:
            self._reject(431, TOO_LARGE)
        else:
            self._reject(400, TOO_MANY if len(self._unanswered) > MAX_PIPELINED else INVALID)

    def close_if_gone(self) -> None:
        """A request waits for its client to disconnect: close the connection if the client has, and it could not be noticed."""
        if self._half_closed and self._cannot_notice():
            self.transport.close()

    def _answering(self) -> Any:
        """The cycle whose response is the next one; None if there is none."""
        return next((cycle for cycle in self._unanswered if not cycle.response_complete), None)

    def _cannot_notice(self) -> bool:
        """Whether a request waits for its client to disconnect, and nothing can be sent to find out whether that is gone."""
        cycle = self._answering()
        return cycle is not None and _is_watched(cycle) and not _can_probe(cycle)

    def _probe(self, delays: Iterator[float]) -> None:
        """Send the client something, to which the system of one that is gone responds with a reset."""
        cycle = self._answering()
        if cycle is None or self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            # asyncio reads no more, so that it would be notified at the next write only.
            return self.transport.abort()
        if cycle.response_started:
            # Other responses are written as fast as the client reads.
            if cycle.chunked_encoding and EVENT_STREAM in cycle.scope["extensions"]:
                self.transport.write(EVENT_STREAM_COMMENT)
        elif _is_watched(cycle):
            self.transport.write(CONTINUE)
        self._probe_timer = self.loop.call_later(next(delays, PROBE_INTERVAL), self._probe, delays)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._max_head_bytes:
            raise _HeadTooLarge

    def _awaits_head(self) -> bool:
        """Whether no request is in progress and the connection is not a WebSocket."""
        return (self.cycle is None or self.cycle.response_complete) and self.transport.get_protocol() is self

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.clock.call_later(HEAD_SECONDS, self._reject, 408, TOO_SLOW)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _reject(self, status: int, text: str) -> None:
        self._stop_head_timer()
        self._rejected = True
        # The bytes after a request that is still being answered are invalid. Its application sees a disconnected client: what it
        # sends would come behind this response.
        if self._disconnect():
            return self.transport.close()
        body = json.dumps({"error": text}).encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.write_eof()
        self.loop.call_later(HTTP_CLOSE_DELAY, self.transport.close)

    def _disconnect(self) -> bool:
        """Have the applications of all unanswered requests see a disconnected client. Returns whether a response has begun."""
        unanswered = [cycle for cycle in self._unanswered if not cycle.response_complete]
        self._unanswered.clear()
        for cycle in unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
            # The application may still read, and nothing can be written behind the end of this side.
            cycle.waiting_for_100_continue = False
        return any(cycle.response_started for cycle in unanswered)


def _is_watched(cycle: Any) -> bool:
    return bool(cycle.scope["extensions"][WATCH_DISCONNECT].called)


def _can_probe(cycle: Any) -> bool:
    return bool(cycle.response_started or cycle.scope["http_version"] == "1.1")
