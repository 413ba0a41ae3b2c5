"""uvicorn servers with a bounded number of connections, also inside another event loop, and the address that they listen on.

It depends on undocumented parts of uvicorn, checked by tests/gateway/server/test_uvicorn_internals.py:

* `uvicorn.Server.capture_signals`, overridden in `EmbeddedServer`: uvicorn has no option to leave signals alone.
* `uvicorn.Server.servers`, read in `listening_address`: uvicorn reports the port that it chose in its log only.
* `uvicorn.Server.main_loop` and `should_exit`, and `ServerState.default_headers`, overridden in `BoundedServer` and
  `_DatedServerState`: uvicorn wakes up every 0.1 s to look at the flag and to set the header `Date`. Its settings
  `limit_max_requests` and `callback_notify`, which depend on that, have no effect here.
* `uvicorn.Server.startup` and `shutdown`, overridden in `BoundedServer`, with `server_state.connections`, `lifespan.state` and
  `config.http_protocol_class`, and `HttpToolsProtocol.cycle`, `transport` and `timeout_keep_alive_task`: uvicorn's
  `limit_concurrency` answers requests with 503, but keeps their connections; asyncio (3.11) accepts as many connections at once
  as the backlog has, and logs each one for which there is no file descriptor.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from weakref import WeakKeyDictionary

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

log = logging.getLogger(__name__)

ACCEPT_BATCH = 64
"""Connections that are accepted before other events are handled."""
ACCEPT_RETRY = 1.0
"""Seconds until connections are accepted again after the system had no resources for one."""
LOG_INTERVAL = 60.0
"""Seconds between two log lines about too many connections."""
MAX_REFUSED = 16
REFUSED_SECONDS = 1.0
"""How long a refused connection stays open, and how many do. Closing at once, with unread input, could lose the response."""

_BODY = json.dumps(
    {"error": "too many connections are open; close some, or raise the limit of open files; then try again"}
).encode()
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: %d\r\nretry-after: 5\r\n"
    b"connection: close\r\n\r\n%b" % (len(_BODY), _BODY)
)


class BoundedServer(uvicorn.Server):
    """A server that has at most `max_connections` open.

    One more closes idle connections: those that have sent no request, then those that have been idle for the longest. If none is
    idle, it gets a 503 and is closed.
    """

    def __init__(self, config: uvicorn.Config, max_connections: int) -> None:
        self._should_exit = False
        self._serving: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        super().__init__(config)
        self.server_state = _DatedServerState(config)
        self.max_connections = max_connections
        self._acceptors: list[_Acceptor] = []

    @property
    def should_exit(self) -> bool:
        """Whether the server is to end. It may be set in a signal handler."""
        return self._should_exit

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._should_exit = value
        if value and self._serving is not None:
            loop, exit_requested = self._serving
            loop.call_soon_threadsafe(exit_requested.set)

    async def main_loop(self) -> None:
        exit_requested = asyncio.Event()
        self._serving = asyncio.get_running_loop(), exit_requested
        try:
            if not self._should_exit:
                await exit_requested.wait()
        finally:
            self._serving = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._acceptors = [_Acceptor(self, found.fileno()) for server in self.servers for found in server.sockets]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.stop_accepting()
        await super().shutdown(sockets)

    def stop_accepting(self) -> None:
        """Accept no more connections. Open ones stay."""
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors = []


class _DatedServerState(ServerState):
    """The state of a server whose headers of every response have the date of the moment when they are read."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._config = config
        self._second, self._headers = -1, list[tuple[bytes, bytes]]()
        super().__init__()

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        second = int(time.time())
        if second != self._second:
            date = [(b"date", formatdate(second, usegmt=True).encode())] if self._config.date_header else []
            self._second, self._headers = second, date + self._config.encoded_headers
        return self._headers

    @default_headers.setter
    def default_headers(self, value: list[tuple[bytes, bytes]]) -> None:
        """Does nothing: uvicorn sets an empty list at the beginning."""


class EmbeddedServer(BoundedServer):
    """A server in the event loop of another one, which leaves signal handlers as they are."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Acceptor:
    """Accepts the connections of a listening socket, instead of asyncio."""

    def __init__(self, server: BoundedServer, listening: int) -> None:
        self._server, self._loop = server, asyncio.get_running_loop()
        # The original is asyncio's, which closes it.
        self._socket = socket.socket(fileno=os.dup(listening))
        self._connecting: set[asyncio.Task[None]] = set()
        self._accepted: WeakKeyDictionary[asyncio.BaseProtocol, float] = WeakKeyDictionary()
        self._refused: deque[socket.socket] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self._logged_at = -LOG_INTERVAL
        self._loop.remove_reader(listening)
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more. Open connections stay."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        while self._refused:
            self._refused.popleft().close()

    def _accept(self) -> None:
        connections, searched = self._server.server_state.connections, False
        for _ in range(ACCEPT_BATCH):
            full = len(connections) + len(self._connecting) >= self._server.max_connections
            if full and not searched:
                # Those that are being opened or closed have been by the next iteration of the event loop, which calls this again.
                if self._connecting or self._close_idle():
                    return
                searched = True
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                return self._pause(error)
            connection.setblocking(False)
            if full:
                self._refuse(connection)
            else:
                task = self._loop.create_task(self._connect(connection))
                self._connecting.add(task)
                task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        with suppress(OSError):
            await self._loop.connect_accepted_socket(self._protocol, connection, ssl=self._server.config.ssl)

    def _protocol(self) -> asyncio.Protocol:
        server = self._server
        protocol: asyncio.Protocol = server.config.http_protocol_class(  # type: ignore[call-arg]
            config=server.config, server_state=server.server_state, app_state=server.lifespan.state, _loop=self._loop
        )
        self._accepted[protocol] = self._loop.time()
        return protocol

    def _close_idle(self) -> bool:
        """Close an eighth of the idle connections, at least one; False if there is none."""
        idle = [
            connection
            for connection in self._server.server_state.connections
            if isinstance(connection, HttpToolsProtocol) and _is_idle(connection)
        ]
        idle.sort(key=lambda connection: (connection.cycle is not None, self._idle_since(connection)))
        closed = idle[: len(idle) // 8 + 1]
        for connection in closed:
            connection.transport.close()
        if closed:
            self._log("all %d connections are in use: idle ones are closed", self._server.max_connections)
        return bool(closed)

    def _idle_since(self, connection: HttpToolsProtocol) -> float:
        timer = connection.timeout_keep_alive_task
        return self._accepted.get(connection, 0.0) if timer is None else timer.when() - connection.timeout_keep_alive

    def _refuse(self, connection: socket.socket) -> None:
        self._log("all %d connections are in use, and none is idle: one more is refused", self._server.max_connections)
        with suppress(OSError):
            connection.send(REFUSAL)
            connection.shutdown(socket.SHUT_WR)
        if len(self._refused) == MAX_REFUSED:
            self._refused.popleft().close()
        self._refused.append(connection)
        self._loop.call_later(REFUSED_SECONDS, self._close_refused, connection)

    def _close_refused(self, connection: socket.socket) -> None:
        with suppress(ValueError):
            self._refused.remove(connection)
            connection.close()

    def _pause(self, error: OSError) -> None:
        """Accept no more for a moment: the socket stays readable, so that the event loop would be busy with it alone."""
        self._log("connections cannot be accepted: %s", error)
        self._close_idle()
        self._loop.remove_reader(self._socket.fileno())
        self._retry = self._loop.call_later(ACCEPT_RETRY, self._loop.add_reader, self._socket.fileno(), self._accept)

    def _log(self, text: str, detail: object) -> None:
        now = time.monotonic()
        if now - self._logged_at >= LOG_INTERVAL:
            self._logged_at = now
            log.warning(text + "; raise the limit of open files (docs/operations.md)", detail)


def _is_idle(connection: HttpToolsProtocol) -> bool:
    """Whether no request is in progress and the connection is not a WebSocket."""
    complete = connection.cycle is None or connection.cycle.response_complete
    return complete and connection.transport.get_protocol() is connection and not connection.transport.is_closing()


def listening_address(server: uvicorn.Server) -> tuple[str, int]:
    """Return the host and port of the first listening socket of a server that has started."""
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    return host, port
