"""Limits of what a client does before its request is known, by uvicorn's setting `http`: connections, heads of requests.

uvicorn limits the head for its h11 parser only. Its `limit_concurrency` counts connections only once a request has arrived, and
also those that have just been closed for new ones. Everything else about requests is limited above uvicorn, in
`gateway/server/guard.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any

from starlette.types import Receive
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from drivers.runtime.clock import SYSTEM_CLOCK, Clock, Timer

HEAD_SECONDS = 30.0
"""Time limit for receiving the request line and the headers: a connection without a request costs a file descriptor."""
MAX_HEAD_BYTES = 64 * 1024
"""Size limit of the same. What one read from the socket brings beyond it, up to 256 KiB, is parsed too."""
CLOSE_DELAY = 2.0
"""Seconds between the refusal of a head and the close. Closing at once, with unread input, could lose the response."""

TOO_SLOW = f"the request line and the headers did not arrive within {HEAD_SECONDS:.0f} seconds"
TOO_LARGE = f"the request line and the headers may have {MAX_HEAD_BYTES} bytes; send less"
TOO_MANY = "too many connections are open; close some, or raise the limit of open files; then try again"


class RequestHead(HttpToolsProtocol):
    """A connection. It overrides what asyncio calls, and nothing of uvicorn's.

    408 for a head that is too slow, 431 for one that is too large; then the connection is closed. `request_arrived` tells it that
    a head is complete. If `limit` connections are open, one more closes an idle one: one that has sent no request, else the one
    that has been idle for the longest. If none is idle, it gets a 503 and is closed.
    """

    limit: int
    """The connections of the server that may be open. Each server has a class of its own: uvicorn makes the protocols."""
    clock: Clock = SYSTEM_CLOCK
    """The clock of HEAD_SECONDS, for the connections of all servers."""

    def __init__(self, config: Config, server_state: ServerState, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, server_state, *args, **kwargs)
        self._all = server_state.connections
        self._requests = self._head_bytes = 0
        self._was_used = self._has_received = False
        self._idle_since: float | None = None
        """The time of the clock since when no request is in progress; None while one is, and for WebSockets."""
        self._timer: Timer | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection = transport
        # This connection is one of all.
        if len(self._all) > self.limit and not self._close_idle():
            return self._refuse(503, TOO_MANY)
        self._idle_since = self.clock.monotonic()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._idle_since = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if not self._requests:
            if self._head_bytes > MAX_HEAD_BYTES:
                return self._refuse(431, TOO_LARGE)
            self._head_bytes += len(data)
            self._await_head()
            self._has_received = True
        _connection.set(self)
        super().data_received(data)
        if self._has_received:
            # If this was the end of a head, the app is called before this, and `begin` by it.
            asyncio.get_running_loop().call_soon(self._wait_again)

    def _wait_again(self) -> None:
        self._has_received = False

    def begin(self) -> None:
        """A request has arrived: its body is limited by somebody else."""
        self._requests += 1
        self._head_bytes = 0
        self._was_used, self._idle_since = True, None
        self._stop_timer()

    def end(self) -> None:
        """The app has ended for a request."""
        self._requests -= 1
        if not self._requests and self._connection.get_protocol() is self:
            self._idle_since = self.clock.monotonic()

    def abort(self) -> None:
        """Close the connection at once, whatever is not sent yet."""
        self._connection.abort()

    async def cut_off(self, receive: Receive) -> None:
        """Close the connection in the middle of a response that is left incomplete on purpose, and wait until it is closed.

        uvicorn does so too, but logs it as an error of the app. `receive` is that of the request.
        """
        self._connection.close()
        while (await receive())["type"] != "http.disconnect":
            pass

    def _close_idle(self) -> bool:
        """Close an idle connection. Return whether there was one."""
        idle = [
            (connection._was_used, connection._idle_since, id(connection), connection)
            for connection in self._all
            if isinstance(connection, RequestHead) and connection._idle_since is not None and not connection._has_received
        ]
        if not idle:
            return False
        closed = min(idle)[-1]
        closed._idle_since = None
        closed.abort()
        return True

    def _await_head(self) -> None:
        if self._timer is None:
            self._timer = self.clock.call_later(HEAD_SECONDS, self._refuse, 408, TOO_SLOW)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, text: str) -> None:
        self._stop_timer()
        self._refused = True
        body = json.dumps({"error": text}).encode()
        self._connection.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (status, HTTPStatus(status).phrase.encode(), len(body), body)
        )
        if status == 503:
            # Any number of them would keep file descriptors.
            return self._connection.close()
        self._connection.write_eof()
        asyncio.get_running_loop().call_later(CLOSE_DELAY, self._connection.close)


_connection: ContextVar[RequestHead | None] = ContextVar("connection", default=None)
"""The connection of the request that this context handles: uvicorn starts the app in the context of `data_received`."""


@contextmanager
def request_arrived() -> Iterator[RequestHead | None]:
    """Within it the app handles a request. Yields its connection; None if it has come another way, as from a test's client."""
    connection = _connection.get()
    if connection is not None:
        connection.begin()
    try:
        yield connection
    finally:
        if connection is not None:
            connection.end()
