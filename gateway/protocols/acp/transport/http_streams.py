"""One client of streamable HTTP: assigns each message of the agent to a stream and keeps it until the stream's GET reads it."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from drivers.runtime.clock import Clock
from gateway.app import Gateway
from gateway.errors import Conflict
from gateway.protocols.acp.connection import Connection
from gateway.security.authentication import Caller

if TYPE_CHECKING:
    from gateway.protocols.acp.rpc import Id

MAX_BUFFERED_BYTES = 32 * 1024 * 1024
"""Bytes that may be buffered for a client that does not read, before its connection is closed. Sessions can be loaded again."""

CONNECTION_SCOPED = frozenset({"session/list", "session/new", "session/fork", "session/delete", "authenticate", "logout"})
"""Requests whose answers go to the connection's own stream. Other answers go to the stream of their session."""
SESSION_OPENING = frozenset({"session/load", "session/resume"})
"""Requests that may come before the session's stream, and without its header (measured: the Python client 0.12.1)."""
MAX_SESSION_STREAMS = 10_000
"""Session streams per connection, those of closed sessions included."""
READER_START_TIMEOUT = 10.0
"""Seconds between the request of a reader and its first read. A reader whose client has disconnected before never reads."""


class Stream:
    """Messages in order, buffered until the one reader takes them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.attached = False
        self.buffered = 0
        self._reading = False
        self._frames: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._ended = False

    def put(self, frame: bytes) -> None:
        """Append one server-sent event."""
        self._frames.append(frame)
        self.buffered += len(frame)
        self._changed.set()

    def attach(self) -> None:
        """Reserve the stream for one reader. Raises Conflict while there is another."""
        if self.attached:
            raise Conflict("this stream already has a reader; only one GET at a time reads a stream")
        self.attached = True
        self._clock.call_later(READER_START_TIMEOUT, self._release_unread)

    def _release_unread(self) -> None:
        self.attached = self._reading

    async def read(self) -> AsyncIterator[bytes]:
        """Yield events until the stream ends. Call `attach` first.

        Events that were yielded to a reader that then disconnects are lost.
        """
        self.attached = self._reading = True
        try:
            while True:
                while self._frames:
                    ready = b"".join(self._frames)
                    self._frames.clear()
                    self.buffered = 0
                    yield ready
                if self._ended:
                    return
                self._changed.clear()
                await self._changed.wait()
        finally:
            self.attached = self._reading = False

    def end(self) -> None:
        """End the stream after the buffered events."""
        self._ended = True
        self._changed.set()


class HttpClient:
    """A connection and its streams.

    `caller` is who created it: no other caller may use it. `check_key` raises Unauthorized once the caller's API key is revoked;
    it is None as long as all requests have come by another node, which does not pass the key on. `released`
    gives the connection back to the quota of the key. Its id begins with `node`.
    """

    def __init__(
        self, gateway: Gateway, agent: str, caller: Caller, *, slash_commands: str | None = None, node: str = ""
    ) -> None:
        self.id, self.caller, self.agent = f"{node}{uuid.uuid4().hex}", caller, agent
        self.connection = Connection(gateway, agent, caller, self.send, slash_commands=slash_commands)
        self.check_key: Callable[[], Awaitable[object]] | None = None
        self.released: Callable[[], None] = lambda: None
        self.last_used = gateway.clock.monotonic()
        self.closed = False
        self._clock = gateway.clock
        self._own = Stream(self._clock)
        self._sessions: dict[str, Stream] = {}
        self._streamed: set[str] = set()
        """Sessions whose messages go to their own stream. Those of other sessions go to the connection's stream."""
        self._opening: dict[str, Id] = {}
        """Requests that open a session without a session header; the history and the answer go to the connection's stream."""
        self._requests: dict[Id, tuple[str, str | None]] = {}
        """Method and session of each unanswered request of the client."""
        self._agent_requests: dict[Id, str | None] = {}
        """Session of each unanswered request of the agent."""
        self._captured: dict[Id, asyncio.Future[dict[str, Any]]] = {}

    @property
    def has_reader(self) -> bool:
        """Whether any of its streams has a reader."""
        return self._own.attached or any(stream.attached for stream in self._sessions.values())

    def attach(self, session_id: str | None) -> Stream:
        """Reserve a session's stream, or the connection's own if `session_id` is None, for one reader.

        Raises Conflict while there is another, or if the connection has had MAX_SESSION_STREAMS sessions.
        """
        if session_id is None:
            self._own.attach()
            return self._own
        if session_id not in self._sessions and len(self._sessions) >= MAX_SESSION_STREAMS:
            raise Conflict(f"this connection has had {MAX_SESSION_STREAMS} sessions; initialize a new one")
        stream = self._stream(session_id)
        stream.attach()
        # Messages of this session are buffered here from now on, also while the reader reconnects.
        self._streamed.add(session_id)
        return stream

    def _stream(self, session_id: str) -> Stream:
        return self._sessions.setdefault(session_id, Stream(self._clock))

    def expect(self, message: dict[str, Any], session_id: str | None, *, has_session_header: bool) -> None:
        """Record the stream of the answer to a client's message. Call it before the connection receives the message.

        `session_id` is the session that the message belongs to, `has_session_header` whether its header named it.
        """
        request_id = message.get("id")
        if not isinstance(request_id, int | str):
            return
        if "method" not in message:
            self._agent_requests.pop(request_id, None)
            return
        self._requests[request_id] = (message["method"], session_id)
        if message["method"] in SESSION_OPENING and session_id is not None and session_id not in self._streamed:
            if has_session_header:
                self._streamed.add(session_id)
            else:
                # This client opens the session's stream when it reads the answer. The history and the answer go to the
                # connection's stream, whatever the client opens meanwhile, because there is no order between two streams.
                self._opening[session_id] = request_id

    def capture_answer(self, request_id: Id) -> asyncio.Future[dict[str, Any]]:
        """Return a future of the answer to a request. That answer goes to no stream."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._captured[request_id] = answer
        return answer

    async def send(self, message: dict[str, Any]) -> None:
        """Append a message to its stream.

        Raises ConnectionError, and ends all streams, if more than MAX_BUFFERED_BYTES are buffered.
        """
        captured = self._captured.pop(message.get("id"), None) if "method" not in message else None
        if captured is not None and not captured.done():
            return captured.set_result(message)
        self._put(message)
        if self._own.buffered + sum(stream.buffered for stream in self._sessions.values()) > MAX_BUFFERED_BYTES:
            self.end()
            raise ConnectionError(f"more than {MAX_BUFFERED_BYTES} bytes are buffered for a client that does not read")

    def end(self) -> None:
        """End all streams."""
        self.closed = True
        for stream in (self._own, *self._sessions.values()):
            stream.end()

    def _put(self, message: dict[str, Any]) -> None:
        if "method" in message:
            return _write(self._stream_of(self._session_of(message)), message)
        request_id, result = message.get("id"), message.get("result")
        method, session_id = self._requests.pop(request_id, ("", None))
        if method in ("session/new", "session/fork") and isinstance(result, dict):
            # The client opens this stream after it has read the answer. The session's messages are buffered there until then.
            self._streamed.add(str(result.get("sessionId")))
        if session_id is not None and self._opening.get(session_id, self) == request_id:
            del self._opening[session_id]
            if isinstance(result, dict):
                # `sessionId` is what makes the Python client open the session's stream.
                self._streamed.add(session_id)
                message = {**message, "result": {"sessionId": session_id, **result}}
            return _write(self._own, message)
        _write(self._own if method in CONNECTION_SCOPED else self._stream_of(session_id), message)
        if method == "session/close" and session_id in self._sessions and isinstance(result, dict):
            # A client that loads the session again opens a new stream.
            self._streamed.discard(session_id)
            self._sessions.pop(session_id).end()

    def _session_of(self, message: dict[str, Any]) -> str | None:
        """Return the session of the agent's message. A cancellation goes to the stream of its request, to be in order with it."""
        params = message.get("params") or {}
        if message["method"] == "$/cancel_request":
            return self._agent_requests.pop(params.get("requestId"), None)
        session_id: str | None = params.get("sessionId")
        if "id" in message:
            self._agent_requests[message["id"]] = session_id
        return session_id

    def _stream_of(self, session_id: str | None) -> Stream:
        if session_id is None or session_id in self._opening or session_id not in self._streamed:
            return self._own
        return self._stream(session_id)


def _write(stream: Stream, message: dict[str, Any]) -> None:
    stream.put(b"data: %b\n\n" % to_json(message))
