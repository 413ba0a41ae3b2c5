"""The client: collects the bytes that a server sends, and looks into them after the clock has stopped.

All measured programs have the same client, so that its cost is the same for all. It looks for two markers only: the first
event, and the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import struct
import time
from dataclasses import dataclass, field
from typing import Any

FIRST = b"event 0 "
EVENT = re.compile(rb"event (\d+) ")
CHUNK_HEAD = re.compile(rb"\r\n[0-9a-f]+\r\n")
CHUNKED_END = b"\r\n0\r\n\r\n"
TIMEOUT = 60.0
"""Maximum time of a response, in seconds."""


@dataclass
class Turn:
    """What a client has received of a turn.

    `first` and `seconds` are the times from the request to the first event and to the last byte, in seconds; `first` is None
    without an event. `ended` is the time of the last byte on the clock of `time.perf_counter`.
    """

    numbers: list[int]
    first: float | None
    seconds: float
    ended: float

    def delivered(self, count: int) -> int:
        """Return how many of the events 0..count-1 came. Raises RuntimeError if they are doubled or out of order."""
        if any(a >= b for a, b in zip(self.numbers, self.numbers[1:], strict=False)) or (
            self.numbers and self.numbers[-1] >= count
        ):
            raise RuntimeError("events are doubled or out of order")
        return len(self.numbers)


@dataclass
class Collector:
    """The bytes of one response."""

    end: bytes
    parts: list[bytes] = field(default_factory=list)
    tail: bytes = b""
    first: float | None = None
    last: float = 0.0
    began: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, data: bytes, now: float) -> None:
        """Add received bytes, and resolve `done` if they complete the response."""
        self.parts.append(data)
        self.last = now - self.began
        seen = self.tail + data
        if self.first is None and FIRST in seen:
            self.first = self.last
        if self.end in seen and not self.done.done():
            self.done.set_result(None)
        self.tail = seen[-64:]

    @property
    def data(self) -> bytes:
        """What was received until now, without chunk sizes."""
        return CHUNK_HEAD.sub(b"", b"".join(self.parts))

    def turn(self) -> Turn:
        """Return the events that were received until now."""
        return Turn(numbers(self.data), self.first, self.last, self.began + self.last)


def numbers(data: bytes) -> list[int]:
    """Return the numbers of the events in received bytes."""
    return [int(number) for number in EVENT.findall(data)]


def session_id(answer: bytes) -> str:
    """Return the session's id in a response. Raises RuntimeError with the response if there is none."""
    found = re.search(rb'"sessionId": ?"([^"]+)"', answer)
    if found is None:
        raise RuntimeError(f"no session: {answer[-500:]!r}")
    return found[1].decode()


class Wire(asyncio.Protocol):
    """One connection, with one collector at a time."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.collector: Collector | None = None
        self.lost: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self.collector is not None:
            self.collector.add(data, time.perf_counter())

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = f"the connection was closed: {exc}"
        if self.collector is not None and not self.collector.done.done():
            self.collector.done.set_exception(RuntimeError(self.lost))

    def send(self, data: bytes, end: bytes) -> Collector:
        """Send a request, and collect what comes from now on. Its `done` is resolved when `end` is received.

        Raises RuntimeError if the connection is lost.
        """
        if self.lost is not None:
            raise RuntimeError(self.lost)
        self.collector = Collector(end)
        self.transport.write(data)
        return self.collector

    async def exchange(self, data: bytes, end: bytes) -> bytes:
        """Send a request and return all that is received, to `end`."""
        collector = self.send(data, end)
        await asyncio.wait_for(collector.done, TIMEOUT)
        return b"".join(collector.parts)

    async def read(self, request: bytes, end: bytes, seconds: float) -> bytes:
        """Send a request and return what is received until `end`, or within `seconds`, without chunk sizes."""
        collector = self.send(request, end)
        await asyncio.wait([collector.done], timeout=seconds)
        collector.done.cancel()
        return collector.data


async def connect(port: int) -> Wire:
    """Connect to a port of 127.0.0.1."""
    _, wire = await asyncio.get_running_loop().create_connection(Wire, "127.0.0.1", port)
    return wire


def http(method: str, path: str, body: object = None, **headers: str) -> bytes:
    """Return the bytes of a request with a JSON body."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(data)}"]
    if data:
        lines.append("Content-Type: application/json")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


def websocket_upgrade(path: str, **headers: str) -> bytes:
    """Return the handshake request of a WebSocket without compression."""
    key = {"Sec_WebSocket_Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec_WebSocket_Version": "13"}
    return http("GET", path, None, Upgrade="websocket", Connection="Upgrade", **key, **headers)


def websocket_frame(data: bytes) -> bytes:
    """Return a masked text frame."""
    mask = os.urandom(4)
    length = len(data)
    head = struct.pack("!BB", 0x81, 0x80 | length) if length < 126 else struct.pack("!BBH", 0x81, 0x80 | 126, length)
    return head + mask + bytes(byte ^ mask[n % 4] for n, byte in enumerate(data))


def rpc(number: int, method: str, params: dict[str, Any]) -> bytes:
    """Return a JSON-RPC request."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


def prompt(number: int, session: str, count: int) -> bytes:
    """Return a prompt of the Agent Client Protocol for `count` events."""
    return rpc(number, "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": str(count)}]})
