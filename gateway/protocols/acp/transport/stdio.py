"""The protocol over standard input and output: one JSON message a line, and nothing else on standard output."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import IO, Any

from pydantic_core import from_json, to_json

LONGEST_LINE = 64 * 1024 * 1024
TOO_LONG = b"(too long)"


class StandardLines:
    """Standard input and output as messages. `open` it first; whatever else is printed goes to standard error from then on."""

    def __init__(self) -> None:
        self._reader = asyncio.StreamReader(limit=LONGEST_LINE)
        self._writer: asyncio.StreamWriter | None = None
        self._out: IO[bytes] | None = None

    async def open(self) -> None:
        """Take both over."""
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self._reader), sys.stdin)
        except ValueError:
            # A file, which has its end already.
            self._reader.feed_data(await asyncio.to_thread(sys.stdin.buffer.read))
            self._reader.feed_eof()
        # A file as output is written as it is; a pipe must not be waited for in a thread, which nothing could stop.
        with suppress(ValueError):
            transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, self._out)
            transport.set_write_buffer_limits(high=0)
            self._writer = asyncio.StreamWriter(transport, protocol, None, loop)

    async def lines(self) -> AsyncIterator[bytes]:
        """Each line, until the end of the input; one that is too long is a line that is no JSON."""
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:
                line = TOO_LONG
            if not line:
                return
            if line.strip():
                yield line

    async def write(self, message: dict[str, Any]) -> None:
        """One message, whole. Waits for a client that reads slowly. Raises OSError once it is gone."""
        line = to_json(message) + b"\n"
        if self._writer is not None:
            self._writer.write(line)
            await self._writer.drain()
        elif self._out is not None:
            self._out.write(line)


def parsed(line: bytes | str) -> Any:
    """The message of a line. Raises ValueError, also for what not everybody reads: NaN, half a surrogate, endless depth."""
    return from_json(line, allow_inf_nan=False)


NOT_JSON: dict[str, Any] = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "this line is not JSON"}}
