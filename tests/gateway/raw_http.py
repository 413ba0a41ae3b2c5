"""HTTP by hand, for what no client library sends."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    where = urlsplit(url)
    return await asyncio.open_connection(where.hostname, where.port)


async def send_raw(url: str, *pieces: bytes) -> tuple[int, bytes]:
    """The status and the rest of what comes back for these bytes, up to the end of the connection."""
    reader, writer = await connect(url)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        got = await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()
    return int(got.split(b" ", 2)[1]), got
