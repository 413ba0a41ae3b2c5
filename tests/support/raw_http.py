"""Raw HTTP over a socket, for requests that client libraries do not send."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    where = urlsplit(url)
    return await asyncio.open_connection(where.hostname, where.port)


async def send_raw(url: str, *pieces: bytes) -> tuple[int, bytes]:
    """Send the bytes, read until the connection is closed, and return the status and the whole response."""
    reader, writer = await connect(url)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        got = await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()
    return int(got.split(b" ", 2)[1]), got
