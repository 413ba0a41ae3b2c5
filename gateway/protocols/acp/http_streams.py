"""One client over streamable HTTP: what goes to it waits in streams, each read by one GET."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from gateway.errors import Conflict
from gateway.gateway import Gateway
from gateway.security import Caller

if TYPE_CHECKING:
    from gateway.protocols.acp.connection import Connection
    from gateway.protocols.acp.rpc import Id

HELD_BYTES = 32 * 1024 * 1024
"""How much may wait for a client that does not read, before its connection is closed; sessions can be loaded again."""

CONNECTION_SCOPED = frozenset({"session/list", "session/new", "session/fork", "session/delete", "authenticate", "logout"})
"""Requests whose answers go to the connection's own stream; the others' to that of their session."""
OPENING = frozenset({"session/load", "session/resume"})
"""Requests that may come before the session's stream is there, and without its header (measured: the Python client 0.12)."""


class Stream:
    """Messages in order, kept until the one reader comes for them."""

    def __init__(self) -> None:
        self.attached = False
        self.held = 0
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

    async def read(self) -> AsyncIterator[bytes]:
        """Frames until the stream ends; `attach` first. What was taken by a reader that then goes is gone with it."""
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
            self.attached = False

    def end(self) -> None:
        """No more after what is held."""
        self._ended = True
        self._news.set()


class HttpClient:
    """A connection with its streams, there for the one who made it."""

    def __init__(self, kind: type[Connection], gateway: Gateway, agent: str, caller: Caller) -> None:
        self.id, self.caller, self.agent = uuid.uuid4().hex, caller, agent
        self.connection = kind(gateway, agent, caller, self.send)
        self.closed = False
        self.heard = time.monotonic()
        self._own = Stream()
        self._sessions: dict[str, Stream] = {}
        self._streamed: set[str] = set()
        self._asked: dict[Id, tuple[str, str | None]] = {}
        self._first: dict[Id, asyncio.Future[dict[str, Any]]] = {}

    @property
    def reading(self) -> bool:
        """Whether any of its streams has a reader."""
        return self._own.attached or any(stream.attached for stream in self._sessions.values())

    def attach(self, session_id: str | None) -> Stream:
        """The stream of a session, or the connection's own, for its one reader. Raises Conflict while there is another."""
        stream = self._own if session_id is None else self._stream(session_id)
        stream.attach()
        if session_id is not None:
            # From now on what comes for it waits here, also while the reader comes anew.
            self._streamed.add(session_id)
        return stream

    def _stream(self, session_id: str) -> Stream:
        return self._sessions.setdefault(session_id, Stream())

    def expect(self, message: dict[str, Any], session_id: str | None) -> None:
        """Remember where the answer to a request belongs."""
        if "method" in message and isinstance(message.get("id"), int | str):
            self._asked[message["id"]] = (message["method"], session_id)

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
        self._target(message).put(b"data: %b\n\n" % to_json(message))
        if self._own.held + sum(stream.held for stream in self._sessions.values()) > HELD_BYTES:
            self.end()
            raise ConnectionError(f"{HELD_BYTES} bytes wait for a client that does not read them")

    def end(self) -> None:
        """End all streams."""
        self.closed = True
        for stream in (self._own, *self._sessions.values()):
            stream.end()

    def _target(self, message: dict[str, Any]) -> Stream:
        if "method" in message:
            session_id = (message.get("params") or {}).get("sessionId")
            return self._of(session_id)
        method, session_id = self._asked.pop(message.get("id"), ("", None))
        result = message.get("result")
        if method in ("session/new", "session/fork") and isinstance(result, dict):
            # Its stream is opened when the client has read this; what comes until then waits there.
            self._streamed.add(str(result.get("sessionId")))
        return self._own if method in CONNECTION_SCOPED else self._of(session_id)

    def _of(self, session_id: str | None) -> Stream:
        # A session that was loaded by a client without its stream: that client opens it when it has read of the session.
        return self._own if session_id not in self._streamed or session_id is None else self._stream(session_id)
