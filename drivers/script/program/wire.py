"""The player's two pipes: events out in batches, requests in as they come, and every wait in between."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

STDIN, STDOUT, STDERR = 0, 1, 2
READ_SIZE, FLUSH_SIZE = 1024 * 1024, 64 * 1024


class Interrupted(Exception):
    """The client has interrupted the turn."""


class InputEnded(Exception):
    """Standard input has ended: the gateway closes the session."""


class Wire:
    """`once` is the task form, whose input has ended before the turn begins."""

    def __init__(self, *, once: bool) -> None:
        self.once = once
        self.ignores_end = once
        self.ignores_interrupt = True
        self._requests: deque[dict[str, Any]] = deque()
        self._replies: dict[str, dict[str, Any]] = {}
        self.steered: list[Any] = []
        self._parts: list[bytes] = []
        self._asked = 0
        self._open = True
        self._out = bytearray()

    def emit(self, kind: str, **fields: object) -> None:
        """Put one event in the batch; fields that are None are left out."""
        event = {"kind": kind, **{name: value for name, value in fields.items() if value is not None}}
        self._out += json.dumps(event, separators=(",", ":")).encode() + b"\n"
        if len(self._out) > FLUSH_SIZE:
            self.flush()

    def ask(self, method: str, **params: object) -> str:
        """Ask the session's client; the id that its answer is waited for by, among `replies`."""
        self._asked += 1
        asked = f"client_{self._asked}"
        self.emit("client_request", id=asked, method=method, params=params)
        return asked

    def write(self, data: bytes) -> None:
        """Write bytes as they are, behind what is in the batch."""
        self.flush()
        _write_all(STDOUT, data)

    def flush(self) -> None:
        if self._out:
            out, self._out = self._out, bytearray()
            _write_all(STDOUT, out)

    def complain(self, line: str) -> None:
        """One line of standard error."""
        self.flush()
        _write_all(STDERR, line.encode("utf-8", "replace") + b"\n")

    def next_request(self) -> dict[str, Any] | None:
        """The next request, waiting for it; None at the end of input."""
        self.flush()
        while self._open and not self._requests:
            self._read()
        return self._requests.popleft() if self._requests else None

    def begin(self) -> None:
        """A turn begins: what was answered before belongs to an older one."""
        self._replies.clear()
        self.ignores_end, self.ignores_interrupt = self.once, False

    def poll(self) -> None:
        """Look at what has come in, without waiting, and write the batch. Raises Interrupted or InputEnded."""
        if self._open and self._ready(0.0):
            self._read()
        try:
            self._sort()
        finally:
            # Last, so that whoever reacts to these events meets the next step and not the end of this one.
            self.flush()

    def pause(self, seconds: float | None) -> None:
        """Wait that long (None: for ever). Raises Interrupted or InputEnded as soon as there is cause."""
        deadline = None if seconds is None else time.monotonic() + seconds
        self.flush()
        while True:
            self._sort()
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._ready(left):
                return
            self._read()
            if deadline is not None and time.monotonic() >= deadline:
                return self._sort()

    def replies(self, ids: Iterable[str]) -> list[dict[str, Any]]:
        """The replies to these calls, in their order, once all are there. Raises Interrupted or InputEnded."""
        awaited = list(ids)
        self.flush()
        self._sort()
        while not all(call in self._replies for call in awaited):
            self._ready(None)
            self._read()
            self._sort()
        return [self._replies.pop(call) for call in awaited]

    def _sort(self) -> None:
        while self._requests and self._requests[0].get("type") != "prompt":
            request = self._requests.popleft()
            if request.get("type") in ("reply", "answer"):
                self._replies[str(request.get("id"))] = request
            elif request.get("type") == "steer":
                self.steered.append(request.get("content", ""))
            elif request.get("type") == "interrupt" and not self.ignores_interrupt:
                raise Interrupted
        if not self._open and not self.ignores_end:
            raise InputEnded

    def _ready(self, seconds: float | None) -> bool:
        """Whether there is input within that time; for ever returns only with input."""
        if self._open:
            return bool(select.select([STDIN], [], [], seconds)[0])
        while seconds is None:
            signal.pause()
        time.sleep(seconds)
        return False

    def _read(self) -> None:
        chunk = os.read(STDIN, READ_SIZE) if self._open else b""
        *whole, rest = chunk.split(b"\n")
        if not chunk:
            self._open = False
            whole, rest = [b""], b""
        if whole:
            whole[0] = b"".join((*self._parts, whole[0]))
            self._parts.clear()
        if rest:
            self._parts.append(rest)
        self._requests.extend(json.loads(line) for line in whole if line.strip())


def _write_all(fd: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
