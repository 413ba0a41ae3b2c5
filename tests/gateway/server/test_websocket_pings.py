"""Pings of WebSockets, and those that an application has switched off."""

from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from gateway.asgi_extensions import NO_PINGS
from tests.gateway.server.asgi_server import Receive, Scope, Send, serving

FRAMES = 60
INTERVAL = 0.05


@pytest.mark.parametrize("pinged", [True, False])
async def test_a_client_that_reads_slowly_keeps_a_websocket_without_pings(pinged: bool) -> None:
    """Its library reads 16 frames ahead, and answers a ping that comes behind them once they are read."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if not pinged:
            scope["extensions"][NO_PINGS] = {}
        await receive()
        await send({"type": "websocket.accept"})
        for _ in range(FRAMES):
            await send({"type": "websocket.send", "text": "x"})
        assert (await receive())["type"] == "websocket.disconnect"

    async with serving(app, ws_ping_interval=INTERVAL, ws_ping_timeout=INTERVAL) as server:
        address = server.url.replace("http", "ws")
        async with connect(address, proxy=None, compression=None, ping_interval=None) as client:
            for _ in range(FRAMES):
                await client.recv()
                await asyncio.sleep(INTERVAL / 10)
            if pinged:
                with pytest.raises(ConnectionClosed):
                    await asyncio.wait_for(client.recv(), 60)
                assert client.close_code == 1011
            else:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.recv(), 5 * INTERVAL)
                assert client.close_code is None
