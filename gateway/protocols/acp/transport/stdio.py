"""ACP over standard input and output: one JSON message per line, and nothing else on standard output.

Protocol page: https://agentclientprotocol.com/protocol/transports#stdio
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import IO, Any

from pydantic_core import to_json

from gateway.protocols.acp.transport.messages import MAX_MESSAGE_BYTES

_LINE_TOO_LONG = b"(line too long)"


class StandardLines:
    """Standard input and output as lines of JSON.

    Call `open` first. From then on, everything else that the process prints to standard output goes to standard error.
    """

    def __init__(self) -> None:
        self._reader = asyncio.StreamReader(limit=MAX_MESSAGE_BYTES)
        self._writer: asyncio.StreamWriter | None = None
        self._out: IO[bytes] | None = None

    async def open(self) -> None:
        """Take over standard input and output."""
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        loop = asyncio.get_running_loop()
        if _can_be_awaited(sys.stdin):
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._reader), sys.stdin)
        else:
            self._reader.feed_data(await asyncio.to_thread(sys.stdin.buffer.read))
            self._reader.feed_eof()
        # A regular file is written synchronously. A pipe is not written in a thread, where a blocked write cannot be cancelled.
        with suppress(ValueError):
            transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, self._out)
            transport.set_write_buffer_limits(high=0)
            self._writer = asyncio.StreamWriter(transport, protocol, None, loop)

    def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines of standard input, as `read_lines` does."""
        return read_lines(self._reader)

    async def write(self, message: dict[str, Any]) -> None:
        """Write one message. Waits while the client does not read. Raises OSError if the client has closed the pipe."""
        await self.write_all((message,))

    async def write_all(self, messages: Sequence[dict[str, Any]]) -> None:
        """Write messages at once. Waits and raises as `write` does."""
        lines = b"".join([to_json(message) + b"\n" for message in messages])
        if self._writer is not None:
            self._writer.write(lines)
            await self._writer.drain()
        elif self._out is not None:
            self._out.write(lines)


async def read_lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield each line that is not blank, until the end of the input.

    For a line longer than the reader's limit it yields a line that is not JSON.
    """
    while True:
        try:
            line = await reader.readline()
        except ValueError:
            line = _LINE_TOO_LONG
        if not line:
            return
        if line.strip():
            yield line


def _can_be_awaited(file: IO[str]) -> bool:
    """Whether asyncio can wait for input of a file: for pipes, sockets and terminals. Not for regular files and /dev/null."""
    kind = os.fstat(file.fileno()).st_mode
    return stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or file.isatty()
