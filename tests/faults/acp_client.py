"""A client of the Agent Client Protocol over WebSocket, for the campaigns that close sessions."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.faults.daemon import KEY, Daemon


class AcpConnection:
    """One connection. `call` sends a request and waits for its answer; updates are collected in `updates`."""

    @classmethod
    async def open(cls, daemon: Daemon, agent: str) -> AcpConnection:
        """Connect to an agent of the daemon."""
        url = daemon.url.replace("http://", "ws://") + f"/acp/{agent}"
        return cls(await connect(url, additional_headers={"Authorization": f"Bearer {KEY}"}, proxy=None))

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ids = 0
        self.updates: list[dict[str, Any]] = []
        self._reader = asyncio.create_task(self._read())

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the whole response, with `result` or `error`. Raises ConnectionError if the connection ends before."""
        return await self.send(method, **params)

    def send(self, method: str, **params: Any) -> asyncio.Future[dict[str, Any]]:
        """Send a request and return the future of its response."""
        self._ids += 1
        answer = asyncio.get_running_loop().create_future()
        self._waiting[self._ids] = answer
        message = {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}
        self._sending = asyncio.create_task(self._socket.send(json.dumps(message)))
        return answer

    async def open_session(self, cwd: str) -> str:
        """Do the handshake, create a session, and return its id."""
        await self.call("initialize", protocolVersion=1, clientCapabilities={})
        response = await self.call("session/new", cwd=cwd, mcpServers=[])
        if "error" in response:
            raise RuntimeError(response["error"])
        return str(response["result"]["sessionId"])

    def drop(self) -> None:
        """Close the TCP connection without a closing handshake."""
        self._socket.transport.abort()

    async def _read(self) -> None:
        with suppress(ConnectionClosed):
            async for line in self._socket:
                message = json.loads(line)
                if "method" in message:
                    self.updates.append(message)
                elif (answer := self._waiting.pop(message["id"], None)) and not answer.done():
                    answer.set_result(message)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionError("the connection has ended"))
