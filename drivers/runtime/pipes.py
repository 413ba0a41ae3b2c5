"""The pipes of an agent's process: lines of its output, with back-pressure, and the last lines of its standard error."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import cast

from drivers.contract.line_splitter import MAX_LINE, LineSplitter, LineTooLong, text_line

HIGH_WATER = 1024 * 1024
"""Bytes of unread lines at which reading the pipe stops; one more line may be held, and the beginning of the next."""
STDERR_LINES, STDERR_BYTES = 500, 256 * 1024
"""How much of the end of standard error is kept."""
PIPE_SIZE, READ_SIZE = 1024 * 1024, 64 * 1024
"""Bytes: the largest buffer of a pipe, and what is read at once."""
DRAIN_SECONDS, MAX_DRAIN_SECONDS = 0.25, 2.0
"""Seconds after the exit, without output and in total, after which the output has ended even if a grandchild has the pipe."""


class Pipes(asyncio.SubprocessProtocol):
    """Collects lines and stops reading while too many are unread.

    Attributes:
        lines: The unread lines.
        readable: Set while there are unread lines, or with `eof`.
        eof: Whether there will be no more lines.
        failure: Why reading the output failed.
        exited: Set when the process has exited.
    """

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.eof = False
        self.failure: str | None = None
        self.exited = asyncio.Event()
        self.readable = asyncio.Event()
        self._out, self._err = LineSplitter(), bytearray()
        self._unread = 0
        self._paused = False
        self._drain: asyncio.Handle | None = None
        self._drain_until = 0.0
        self._transport: asyncio.SubprocessTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            return self._keep_stderr(data)
        self._keep_stdout(data)
        if self._unread > HIGH_WATER and not self._paused:
            self._paused = True
            self._pause(True)
        if self.exited.is_set() and asyncio.get_running_loop().time() < self._drain_until:
            self._await_rest()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._finish()

    def process_exited(self) -> None:
        self.exited.set()
        self._drain_until = asyncio.get_running_loop().time() + MAX_DRAIN_SECONDS
        self._await_rest()

    def take(self) -> list[bytes]:
        """Take the unread lines; reading continues."""
        lines, self.lines, self._unread = self.lines, [], 0
        if not self.eof:
            self.readable.clear()
        if self._paused:
            self._paused = False
            self._pause(False)
        return lines

    def stderr_tail(self) -> list[str]:
        """The last lines of standard error."""
        lines = bytes(self._err[-STDERR_BYTES:]).removesuffix(b"\n").split(b"\n")
        return [text_line(line) for line in lines[-STDERR_LINES:]] if self._err else []

    def _pause(self, pause: bool) -> None:
        pipe = self._transport.get_pipe_transport(1)
        if isinstance(pipe, asyncio.ReadTransport) and not pipe.is_closing():
            pipe.pause_reading() if pause else pipe.resume_reading()
        if not pause and self.exited.is_set():
            self._await_rest()

    def _await_rest(self) -> None:
        # A grandchild that inherited stdout keeps the pipe open for as long as it lives. The process' own output is
        # all in the pipe already, so silence after the exit is the end.
        if self._drain:
            self._drain.cancel()
            self._drain = None
        if not self.eof and not self._paused:
            loop = asyncio.get_running_loop()
            self._drain = loop.call_at(min(loop.time() + DRAIN_SECONDS, self._drain_until), self._drained)

    def _drained(self) -> None:
        # After the data that this turn of the loop has read already: it may have been held up for longer than this.
        self._drain = asyncio.get_running_loop().call_soon(self._take_rest)

    def _take_rest(self) -> None:
        self.read_available()
        self._finish()

    def read_available(self) -> None:
        """Read what is in the pipe now, at most PIPE_SIZE bytes."""
        pipe = self._transport.get_pipe_transport(1)
        if pipe is not None and not pipe.is_closing():
            with suppress(OSError):
                for _ in range(PIPE_SIZE // READ_SIZE):
                    data = os.read(pipe.get_extra_info("pipe").fileno(), READ_SIZE)
                    if not data:
                        return self._finish()
                    self._keep_stdout(data)

    def _keep_stdout(self, data: bytes) -> None:
        if self.eof:
            return
        before = self._out.held
        try:
            lines = self._out.feed(data)
        except LineTooLong:
            self.failure = f"the agent wrote a line of more than {MAX_LINE // 1024 // 1024} MiB; the run was stopped"
            self._out.rest()
            self._finish()
            return
        if lines:
            self.lines += lines
            self._unread += before + len(data) - self._out.held
            self.readable.set()

    def _keep_stderr(self, data: bytes) -> None:
        self._err += data
        if len(self._err) > 2 * STDERR_BYTES:
            del self._err[:-STDERR_BYTES]

    def _finish(self) -> None:
        if self._drain:
            self._drain.cancel()
        if self.eof:
            return
        if rest := self._out.rest():
            self.lines.append(rest)
        self.eof = True
        self.readable.set()
