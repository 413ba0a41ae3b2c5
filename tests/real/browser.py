"""A headless browser, and pages whose scripts report results to the test."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
"""The browser runs as the user of the tests, opens only pages of this module, and makes no background requests."""


def find_browser() -> str | None:
    """The first browser on PATH."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@dataclass
class Pages:
    """A web server for one page; `found` is the argument of its `report(...)`."""

    port: int
    found: asyncio.Future[Any]

    def url(self, host: str) -> str:
        return f"http://{host}:{self.port}/"


@asynccontextmanager
async def page(script: str) -> AsyncIterator[Pages]:
    """Serve a page that runs this module script, under any host name."""
    head = "async function report(found) { await fetch('/report', {method: 'POST', body: JSON.stringify(found)}) }"
    html = f"<!doctype html><title>page</title><body><script>{head}</script><script type=module>{script}</script>".encode()
    found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        if lines[0].startswith("post /report") and not found.done():
            found.set_result(json.loads(body))
        status = "200 OK" if lines[0].startswith(("get / ", "post /report")) else "404 Not Found"
        sent = html if lines[0].startswith("get / ") else b""
        writer.write(f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(sent)}\r\n".encode())
        writer.write(b"Connection: close\r\n\r\n" + sent)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield Pages(server.sockets[0].getsockname()[1], found)


@asynccontextmanager
async def browsing(program: str, profile: Path, url: str, flags: Sequence[str] = ()) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the browser with a page open; end its process group afterwards."""
    await asyncio.to_thread(profile.mkdir, parents=True, exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        program, *FLAGS, f"--user-data-dir={profile}", *flags, url,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "HOME": str(profile)}, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()
