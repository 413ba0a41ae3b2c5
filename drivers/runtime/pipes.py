"""The pipes of an agent's process: lines of its output and its input, with limits, and the last lines of its standard error."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Protocol, cast

from drivers.contract.line_splitter import MAX_LINE, LineSplitter, LineTooLong, text_line
from drivers.runtime.clock import SYSTEM_CLOCK, Clock, Timer

HIGH_WATER = 1024 * 1024
"""Bytes of unread lines at which reading the pipe stops; one more line may be held, and the beginning of the next."""
INPUT_HIGH_WATER = 16 * 1024 * 1024
"""Bytes of input that the process has not read at which `writable` is False."""
MAX_INPUT = 64 * 1024 * 1024
"""Bytes of input that the process has not read at which nothing more can be written. A single write may be larger."""
STDERR_LINES, STDERR_BYTES = 500, 256 * 1024
"""How much of the end of standard error is kept."""
PIPE_SIZE, READ_SIZE = 1024 * 1024, 64 * 1024
"""Bytes: the largest buffer of a pipe, and what is read at once."""
DRAIN_SECONDS, MAX_DRAIN_SECONDS = 0.25, 2.0
"""Seconds after the exit, without output and in total, after which the output has ended even if a grandchild has the pipe."""


class Splitter(Protocol):
    """Cuts output into lines."""

    @property
    def held(self) -> int: ...

    def feed(self, chunk: bytes) -> list[bytes]: ...

    def rest(self) -> bytes: ...


class Unsplit:
    """Passes on each chunk as it is, for output that need not have lines."""

    held = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        return [chunk] if chunk else []

    def rest(self) -> bytes:
        return b""


class Pipes(asyncio.SubprocessProtocol):
    """Collects lines and stops reading while too many are unread.

    Parameters:
        splitter: Cuts standard output into what `take` returns; lines by default.
        max_output: Bytes of standard output at which nothing more is read; None without a limit.

    Attributes:
        lines: The unread lines.
        readable: Set while there are unread lines, or with `eof`.
        eof: Whether there will be no more lines.
        failure: Why nothing more is read or written.
        exited: Set when the process has exited.
        ended: Done when the process has exited and there will be no more lines.
    """

    def __init__(self, splitter: Splitter | None = None, clock: Clock = SYSTEM_CLOCK, *, max_output: int | None = None) -> None:
        self._clock = clock
        self._max_output, self._read = max_output, 0
        self.lines: list[bytes] = []
        self.eof = False
        self.failure: str | None = None
        self.exited = asyncio.Event()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._out, self._err = splitter or LineSplitter(), bytearray()
        self._unread = 0
        self._paused = False
        self._drain: Timer | asyncio.Handle | None = None
        self._drain_until = 0.0
        self._transport: asyncio.SubprocessTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        if (stdin := self._stdin) is not None:
            stdin.set_write_buffer_limits(high=INPUT_HIGH_WATER)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            return self._keep_stderr(data)
        self._keep_stdout(data)
        if self._unread > HIGH_WATER and not self._paused:
            self._paused = True
            self._pause(True)
        if self.exited.is_set() and self._clock.monotonic() < self._drain_until:
            self._await_rest()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._finish()
        elif fd == 0:
            self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def process_exited(self) -> None:
        self._writable.set()
        self.exited.set()
        self._drain_until = self._clock.monotonic() + MAX_DRAIN_SECONDS
        self._await_rest()
        self._check_ended()

    @property
    def writable(self) -> bool:
        """Whether less than INPUT_HIGH_WATER bytes of the input are unread, or the process has ended."""
        return self._writable.is_set()

    async def wait_until_writable(self) -> None:
        """Wait for `writable`."""
        # Another writer may have written more since the event.
        while not self._writable.is_set():
            await self._writable.wait()

    def write(self, data: bytes) -> bool:
        """Queue bytes for standard input. False if it is closed, or if more than MAX_INPUT bytes are unread: `failure` then."""
        stdin = self._stdin
        if stdin is None or stdin.is_closing() or self.failure is not None:
            return False
        if stdin.get_write_buffer_size() > MAX_INPUT:
            size = MAX_INPUT // 1024 // 1024
            self._fail(f"the agent does not read its input, of which more than {size} MiB are unread; the run was stopped")
            return False
        stdin.write(data)
        return True

    def end_input(self) -> None:
        """Close standard input once all is written."""
        stdin = self._stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write_eof() if stdin.can_write_eof() else stdin.close()

    @property
    def _stdin(self) -> asyncio.WriteTransport | None:
        stdin = self._transport.get_pipe_transport(0)
        return stdin if isinstance(stdin, asyncio.WriteTransport) else None

    def take(self) -> list[bytes]:
        """Take the unread lines; reading continues."""
        lines, self.lines, self._unread = self.lines, [], 0
        if not self.eof:
            self.readable.clear()
        if self._paused:
            self._paused = False
            self._pause(False)
        return lines

    def take_unfinished(self) -> bytes:
        """Take the output after its last newline."""
        return self._out.rest()

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
            self._drain = self._clock.call_at(min(self._clock.monotonic() + DRAIN_SECONDS, self._drain_until), self._drained)

    def _drained(self) -> None:
        # After the data that this turn of the loop has read already: it may have been held up for longer than this.
        self._drain = asyncio.get_running_loop().call_soon(self._take_rest)

    def _take_rest(self) -> None:
        self._read_pipe()
        self._finish()

    @property
    def output_ends(self) -> bool:
        """Whether there is no output but what has been read: `eof` follows in the next iterations of the event loop at latest."""
        pipe = self._transport.get_pipe_transport(1)
        return self.eof or pipe is None or pipe.is_closing()

    async def read_available(self) -> None:
        """Read what is in the pipe now, at most PIPE_SIZE bytes."""
        pipe = self._transport.get_pipe_transport(1)
        if isinstance(pipe, asyncio.ReadTransport) and not pipe.is_closing():
            # The event loop passes on what it has read in its next iteration, and must read nothing more before that.
            pipe.pause_reading()
            try:
                await asyncio.sleep(0)
            finally:
                if not self._paused and not pipe.is_closing():
                    pipe.resume_reading()
        self._read_pipe()

    def _read_pipe(self) -> None:
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
        self._read += len(data)
        if self._max_output is not None and self._read > self._max_output:
            return self._fail(f"it wrote more than {self._max_output // 1024} KiB, and was stopped")
        before = self._out.held
        try:
            lines = self._out.feed(data)
        except LineTooLong:
            return self._fail(f"the agent wrote a line of more than {MAX_LINE // 1024 // 1024} MiB; the run was stopped")
        if lines:
            self.lines += lines
            self._unread += before + len(data) - self._out.held
            self.readable.set()

    def _keep_stderr(self, data: bytes) -> None:
        self._err += data
        if len(self._err) > 2 * STDERR_BYTES:
            del self._err[:-STDERR_BYTES]

    def _fail(self, why: str) -> None:
        self.failure = why
        self._out.rest()
        self._finish()

    def _finish(self) -> None:
        if self._drain:
            self._drain.cancel()
        if self.eof:
            return
        if rest := self._out.rest():
            self.lines.append(rest)
        self.eof = True
        self.readable.set()
        self._check_ended()

    def _check_ended(self) -> None:
        if self.eof and self.exited.is_set() and not self.ended.done():
            self.ended.set_result(None)
