"""What a connection may send before it is a request: bounds that uvicorn's parser does not have."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MAX_HEAD = 64 * 1024
"""Bytes of a request line with its headers."""
MAX_HEADERS = 100
HEAD_SECONDS = 30.0
"""How long a client may take for them; a connection without a request costs a file descriptor."""
LINGER = 2.0
"""How long what is still sent after a refusal is thrown away: a connection that is closed under it may lose the refusal."""
KEEP_ALIVE = 75
"""Seconds that a quiet connection stays open: longer than clients with a pool keep theirs, so that none picks a dying one."""

TOO_LARGE = f"the request line and the headers may have {MAX_HEAD} bytes and {MAX_HEADERS} headers; send less"
TOO_SLOW = f"the request line and the headers did not come within {HEAD_SECONDS:.0f} seconds"


class TooLarge(Exception):
    """Raised in the parser's callbacks, which ends the parsing."""


class HeaderLimitProtocol(HttpToolsProtocol):
    """431 for a request head that is too large, 408 for one that is too slow, and the one form of errors for both and 400."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = self._unparsed = 0
        self._slow: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self._refused:
            return
        if self.transport.is_closing() or not self._waits_for_a_head():
            self._unparsed = 0
            return self._unwatch()
        # The parser gives a header when it is whole.
        self._unparsed += len(data)
        if self._unparsed > MAX_HEAD:
            return self._refuse(431, TOO_LARGE)
        self._watch()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            raise TooLarge

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for whatever the parser has refused."""
        too_large = self._head > MAX_HEAD or len(self.headers or ()) > MAX_HEADERS
        self._refuse(*((431, TOO_LARGE) if too_large else (400, "this is not an HTTP request that can be read")))

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > MAX_HEAD:
            raise TooLarge

    def _waits_for_a_head(self) -> bool:
        """Whether no request is at work, and the connection has not become a WebSocket's."""
        return (self.cycle is None or self.cycle.response_complete) and self.transport.get_protocol() is self

    def _watch(self) -> None:
        if self._slow is None:
            self._slow = self.loop.call_later(HEAD_SECONDS, self._refuse, 408, TOO_SLOW)

    def _unwatch(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _refuse(self, status: int, text: str) -> None:
        self._unwatch()
        self._refused = True
        body = json.dumps({"error": text}).encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.close)
