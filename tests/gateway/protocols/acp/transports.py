"""A client at either end of a wire: `portico acp AGENT` with its standard input and output, or a daemon's WebSocket."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

from tests.conftest import write_config
from tests.daemon import SCENARIOS, table
from tests.gateway.protocols.acp.client import Client


def config(folder: Path) -> dict[str, Any]:
    work = folder / "work"
    work.mkdir()
    (work / "acp.json").write_text((SCENARIOS / "acp.json").read_text())
    return table(folder, agents={"script": {"driver": "script", "cwd": str(work), "options": {"scenario": "acp.json"}}})


@asynccontextmanager
async def on_stdio(
    folder: Path,
    agent: str,
    *more: str,
    stderr: bool = False,
    settings: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[tuple[Client, asyncio.subprocess.Process]]:
    """A client of `portico acp AGENT`, with these settings or those of `config`."""
    path = write_config(folder, dict(config(folder) if settings is None else settings))
    command = (sys.executable, "-m", "gateway", "acp", "--config", str(path), *more, agent)
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE if stderr else None,
        limit=64 * 1024 * 1024,
        cwd=folder,
        env=env,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def send(message: dict[str, Any]) -> None:
        stdin.write(json.dumps(message).encode() + b"\n")
        await stdin.drain()

    async def read() -> None:
        while line := await stdout.readline():
            # Whatever is not a message of JSON-RPC fails here.
            await client.take(json.loads(line.decode("utf-8", "strict")))

    client = Client(send)
    reading = asyncio.create_task(read())
    try:
        yield client, process
    finally:
        if process.returncode is None:
            stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 30)
            except TimeoutError:
                process.kill()
        await reading


@asynccontextmanager
async def on_websocket(url: str, agent: str, key: str) -> AsyncIterator[Client]:
    """A client of the daemon at `url`."""
    headers = {"Authorization": f"Bearer {key}"}
    async with connect(f"ws{url[4:]}/acp/{agent}", additional_headers=headers, proxy=None, max_size=None) as socket:

        async def send(message: dict[str, Any]) -> None:
            await socket.send(json.dumps(message))

        async def read() -> None:
            async for frame in socket:
                await client.take(json.loads(frame))

        client = Client(send)
        reading = asyncio.create_task(read())
        try:
            yield client
        finally:
            await socket.close()
            await reading
