"""One client over streamable HTTP: what goes to it waits in streams, each read by one GET."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from gateway.errors import Conflict
from gateway.gateway import Gateway
from gateway.security.authentication import Caller

if TYPE_CHECKING:
    from gateway.protocols.acp.connection import Connection
    from gateway.protocols.acp.rpc import Id

HELD_BYTES = 32 * 1024 * 1024
"""How much may wait for a client that does not read, before its connection is closed; sessions can be loaded again."""

CONNECTION_SCOPED = frozenset({"session/list", "session/new", "session/fork", "session/delete", "authenticate", "logout"})
"""Requests whose answers go to the connection's own stream; the others' to that of their session."""
OPENING = frozenset({"session/load", "session/resume"})
"""Requests that may come before the session's stream is there, and without its header (measured: the Python client 0.12)."""
STREAMS = 10_000
"""How many sessions' streams a connection may have had."""
BEGINS = 10.0
"""Seconds that a reader may take to begin; one whose client has gone before its first byte never does."""


class Stream:
    """Messages in order, kept until the one reader comes for them."""

    def __init__(self) -> None:
        self.attached = False
        self.held = 0
        self._reading = False
        self._frames: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._ended = False

    def put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self.held += len(frame)
        self._news.set()

    def attach(self) -> None:
        """Be the one reader. Raises Conflict while there is another."""
        if self.attached:
            raise Conflict("this stream has a reader already; a stream is read by one GET at a time")
        self.attached = True
        asyncio.get_running_loop().call_later(BEGINS, self._give_up)

    def _give_up(self) -> None:
        self.attached = self._reading

    async def read(self) -> AsyncIterator[bytes]:
        """Frames until the stream ends; `attach` first. What was taken by a reader that then goes is gone with it."""
        self.attached = self._reading = True
        try:
            while True:
                while self._frames:
                    ready = b"".join(self._frames)
                    self._frames.clear()
                    self.held = 0
                    yield ready
                if self._ended:
                    return
                self._news.clear()
                await self._news.wait()
        finally:
            self.attached = self._reading = False

    def end(self) -> None:
        """No more after what is held."""
        self._ended = True
        self._news.set()


class HttpClient:
    """A connection with its streams, there for the one who made it. `allowed` raises Unauthorized once the key is taken back."""

    def __init__(self, kind: type[Connection], gateway: Gateway, agent: str, caller: Caller) -> None:
        self.id, self.caller, self.agent = uuid.uuid4().hex, caller, agent
        self.connection = kind(gateway, agent, caller, self.send)
        self.allowed: Callable[[], object] = lambda: None
        self.closed = False
        self.heard = time.monotonic()
        self._own = Stream()
        self._sessions: dict[str, Stream] = {}
        self._streamed: set[str] = set()
        self._opening: dict[str, Id] = {}
        self._asked: dict[Id, tuple[str, str | None]] = {}
        self._asks: dict[Id, str | None] = {}
        self._first: dict[Id, asyncio.Future[dict[str, Any]]] = {}

    @property
    def reading(self) -> bool:
        """Whether any of its streams has a reader."""
        return self._own.attached or any(stream.attached for stream in self._sessions.values())

    def attach(self, session_id: str | None) -> Stream:
        """The stream of a session, or the connection's own, for its one reader. Raises Conflict while there is another."""
        if session_id is None:
            self._own.attach()
            return self._own
        if session_id not in self._sessions and len(self._sessions) >= STREAMS:
            raise Conflict(f"this connection has had {STREAMS} sessions; initialize a new one")
        stream = self._stream(session_id)
        stream.attach()
        # From now on what comes for it waits here, also while the reader comes anew.
        self._streamed.add(session_id)
        return stream

    def _stream(self, session_id: str) -> Stream:
        return self._sessions.setdefault(session_id, Stream())

    def expect(self, message: dict[str, Any], session_id: str | None, *, named: bool) -> None:
        """Remember where the answer to a request belongs. `named`: whether it came with the session's header."""
        request_id = message.get("id")
        if not isinstance(request_id, int | str):
            return
        if "method" not in message:
            self._asks.pop(request_id, None)
            return
        self._asked[request_id] = (message["method"], session_id)
        if message["method"] in OPENING and session_id is not None and session_id not in self._streamed:
            if named:
                self._streamed.add(session_id)
            else:
                # This client opens the session's stream when it first reads of the session. All of the history and the
                # answer go to the connection's, whatever it opens meanwhile: between two streams there is no order.
                self._opening[session_id] = request_id

    def first(self, request_id: Id) -> asyncio.Future[dict[str, Any]]:
        """The answer to this request goes to whoever waits for this, and to no stream."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._first[request_id] = answer
        return answer

    async def send(self, message: dict[str, Any]) -> None:
        """Put a message where the client reads it. Raises ConnectionError for a client that reads nothing for long."""
        waiting = self._first.pop(message.get("id"), None) if "method" not in message else None
        if waiting is not None and not waiting.done():
            return waiting.set_result(message)
        self._put(message)
        if self._own.held + sum(stream.held for stream in self._sessions.values()) > HELD_BYTES:
            self.end()
            raise ConnectionError(f"{HELD_BYTES} bytes wait for a client that does not read them")

    def end(self) -> None:
        """End all streams."""
        self.closed = True
        for stream in (self._own, *self._sessions.values()):
            stream.end()

    def _put(self, message: dict[str, Any]) -> None:
        if "method" in message:
            return _write(self._of(self._session_of(message)), message)
        request_id, result = message.get("id"), message.get("result")
        method, session_id = self._asked.pop(request_id, ("", None))
        if method in ("session/new", "session/fork") and isinstance(result, dict):
            # Its stream is opened when the client has read this; what comes until then waits there.
            self._streamed.add(str(result.get("sessionId")))
        if session_id is not None and self._opening.get(session_id, self) == request_id:
            del self._opening[session_id]
            if isinstance(result, dict):
                # So it learns which stream to open now.
                self._streamed.add(session_id)
                message = {**message, "result": {"sessionId": session_id, **result}}
            return _write(self._own, message)
        _write(self._own if method in CONNECTION_SCOPED else self._of(session_id), message)
        if method == "session/close" and session_id in self._sessions and isinstance(result, dict):
            # A client that loads it again opens a new one.
            self._streamed.discard(session_id)
            self._sessions.pop(session_id).end()

    def _session_of(self, message: dict[str, Any]) -> str | None:
        """What is taken back is so on the stream of its request, behind it: between two streams there is no order."""
        params = message.get("params") or {}
        if message["method"] == "$/cancel_request":
            return self._asks.pop(params.get("requestId"), None)
        session_id: str | None = params.get("sessionId")
        if "id" in message:
            self._asks[message["id"]] = session_id
        return session_id

    def _of(self, session_id: str | None) -> Stream:
        if session_id is None or session_id in self._opening or session_id not in self._streamed:
            return self._own
        return self._stream(session_id)


def _write(stream: Stream, message: dict[str, Any]) -> None:
    stream.put(b"data: %b\n\n" % to_json(message))
