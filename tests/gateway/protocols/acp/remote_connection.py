"""A WebSocket with the interface of a `Connection` in this process."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn, Protocol

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket

from tests.support.cluster import leave_out
from tests.support.daemon import KEY


class Receiver(Protocol):
    """What messages are for."""

    async def receive(self, message: dict[str, Any]) -> None: ...


class RemoteConnection:
    """Opens a WebSocket for the first message that is sent. `client` gets those that are received."""

    client: Receiver

    def __init__(self, url: str) -> None:
        self._url = url
        self._opening = asyncio.Lock()
        self._socket: ClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message of the client."""
        async with self._opening:
            if self._socket is None:
                headers = {"Authorization": f"Bearer {KEY}"}
                self._socket = await connect_websocket(self._url, additional_headers=headers, proxy=None, max_size=None)
                self._reading = asyncio.create_task(self._read(self._socket))
        await self._socket.send(json.dumps(message))

    async def _read(self, socket: ClientConnection) -> None:
        async for frame in socket:
            await self.client.receive(json.loads(frame))

    async def close(self) -> None:
        """End the connection. Raises the error of an invalid message."""
        if self._socket is not None and self._reading is not None:
            await self._socket.close()
            await self._reading

    def __getattr__(self, name: str) -> NoReturn:
        leave_out(f"uses `{name}` of a connection")
