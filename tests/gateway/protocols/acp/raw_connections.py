"""Raw WebSocket and HTTP connections, for requests that no client library sends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

from tests.support.daemon import KEY, RunningGateway

BEARER = {"Authorization": f"Bearer {KEY}"}
STREAM = {"Accept": "text/event-stream"}


def rpc(method: str, params: dict[str, Any], number: int = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


INITIALIZE = rpc("initialize", {"protocolVersion": 1}, 0)


@asynccontextmanager
async def socket_to(portico: RunningGateway, agent: str = "echo", key: str = KEY, **more: Any) -> AsyncIterator[ClientConnection]:
    """A WebSocket connection, after `initialize`."""
    url = f"ws{portico.url[4:]}/acp/{agent}"
    headers = {"Authorization": f"Bearer {key}"}
    async with connect(url, additional_headers=headers, proxy=None, close_timeout=1, **more) as socket:
        await asked(socket, INITIALIZE)
        yield socket


async def asked(socket: ClientConnection, message: dict[str, Any]) -> dict[str, Any]:
    await socket.send(json.dumps(message))
    return await answer_to(socket, message["id"])


async def answer_to(socket: ClientConnection, number: int) -> dict[str, Any]:
    async with asyncio.timeout(60):
        async for frame in socket:
            message: dict[str, Any] = json.loads(frame)
            if message.get("id") == number and "method" not in message:
                return message
    raise AssertionError(f"no answer to {number}")


async def initialized(client: httpx.AsyncClient, url: str) -> dict[str, str]:
    """Open a connection over HTTP; return the header that names it."""
    answer = await client.post(url, json=INITIALIZE)
    assert answer.status_code == 200, answer.text
    assert answer.json()["result"]["protocolVersion"] == 1
    return {"Acp-Connection-Id": answer.headers["acp-connection-id"]}
