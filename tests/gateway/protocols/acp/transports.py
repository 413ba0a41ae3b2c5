"""A client over each transport: standard input and output of `portico acp`, WebSocket and streamable HTTP of a daemon."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio.client import connect

from tests.conftest import write_config
from tests.gateway.protocols.acp.client import Client
from tests.support.daemon import SCENARIOS, gateway_config
from tests.support.fork_server import forked_command
from tests.support.sse import arriving


def config(folder: Path) -> dict[str, Any]:
    work = folder / "work"
    work.mkdir(exist_ok=True)
    (work / "acp.json").write_text((SCENARIOS / "acp.json").read_text())
    return gateway_config(folder, agents={"script": {"driver": "script", "cwd": str(work), "options": {"scenario": "acp.json"}}})


@asynccontextmanager
async def on_stdio(
    folder: Path,
    agent: str,
    *more: str,
    stderr: bool = False,
    settings: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[tuple[Client, asyncio.subprocess.Process]]:
    """A client of `portico acp AGENT` and its process, configured with `settings` or else with `config(folder)`."""
    path = write_config(folder, dict(config(folder) if settings is None else settings))
    command = forked_command("gateway", "acp", "--config", str(path), *more, agent)
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
            # A line that is not a JSON-RPC message raises here.
            await client.receive(json.loads(line.decode("utf-8", "strict")))

    client = Client(send)
    reading = asyncio.create_task(read())
    try:
        yield client, process
    finally:
        if process.returncode is None:
            stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 60)
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
                await client.receive(json.loads(frame))

        client = Client(send)
        reading = asyncio.create_task(read())
        try:
            yield client
        finally:
            await socket.close()
            await reading


class _Streams:
    """A connection over streamable HTTP: one POST for each message, one stream for the connection and one for each session."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http, self._url = http, url
        self._connection: dict[str, str] = {}
        self._reading: dict[str | None, asyncio.Task[None]] = {}
        self.client = Client(self._send)

    async def _send(self, message: dict[str, Any]) -> None:
        params = message.get("params")
        session = params.get("sessionId") if isinstance(params, dict) else None
        if isinstance(session, str) and session not in self._reading:
            await self._read(session)
        answer = await self._http.post(self._url, json=message, headers=self._headers(session))
        if answer.status_code == 200 and not self._connection:
            self._connection = {"Acp-Connection-Id": answer.headers["acp-connection-id"]}
            await self._read(None)
            return await self.client.receive(answer.json())
        assert answer.status_code == 202, answer.text

    def _headers(self, session: Any) -> dict[str, str]:
        return {**self._connection, **({"Acp-Session-Id": session} if isinstance(session, str) else {})}

    async def _read(self, session: str | None) -> None:
        headers = {"Accept": "text/event-stream", **self._headers(session)}
        response = await self._http.send(self._http.build_request("GET", self._url, headers=headers), stream=True)
        assert response.status_code == 200, await response.aread()
        self._reading[session] = asyncio.create_task(self._take(response))

    async def _take(self, response: httpx.Response) -> None:
        async for event in arriving(response):
            await self.client.receive(event.json())

    async def end(self) -> None:
        """End the connection. Raises the error of an invalid message."""
        await self._http.delete(self._url, headers=self._connection)
        await asyncio.gather(*self._reading.values())


@asynccontextmanager
async def on_http(url: str, agent: str, key: str) -> AsyncIterator[Client]:
    """A client of the daemon at `url`; it may open any number of connections, as each session has a stream."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60, limits=limits, verify=False) as http:
        streams = _Streams(http, f"{url}/acp/{agent}")
        try:
            yield streams.client
        finally:
            await streams.end()
