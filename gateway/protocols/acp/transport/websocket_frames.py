"""The frames of one client's WebSocket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from pydantic_core import to_json
from starlette.websockets import WebSocket, WebSocketDisconnect

from drivers.runtime.clock import Clock
from gateway.errors import Unauthorized

GOING_AWAY, POLICY_VIOLATION = 1001, 1008
KEY_CHECK_INTERVAL = 30.0
"""Seconds between checks whether the API key of an idle client is still valid."""


class Frames:
    """A socket that closes itself with the code 1008 as soon as `check_key` raises Unauthorized."""

    def __init__(self, socket: WebSocket, check_key: Callable[[], Awaitable[object]] | None, clock: Clock) -> None:
        self._socket, self._check_key, self._clock = socket, check_key, clock

    async def send(self, message: dict[str, Any]) -> None:
        """Send one message. Waits while the client does not read. Raises WebSocketDisconnect, Unauthorized."""
        await self._close_if_revoked()
        await self._socket.send_text(to_json(message).decode())

    async def close(self, code: int, reason: str) -> None:
        """Close the socket, unless it is closed."""
        with suppress(RuntimeError, WebSocketDisconnect):
            await self._socket.close(code, reason)

    async def send_all(self, messages: Sequence[dict[str, Any]]) -> None:
        """Send messages. Raises as `send` does."""
        for message in messages:
            await self.send(message)

    async def receive(self) -> Any:
        """Return the next frame. Raises WebSocketDisconnect, Unauthorized."""
        while True:
            try:
                async with self._clock.timeout(None if self._check_key is None else KEY_CHECK_INTERVAL):
                    frame = await self._socket.receive()
            except TimeoutError:
                await self._close_if_revoked()
                continue
            if frame["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(frame.get("code", 1000))
            await self._close_if_revoked()
            return frame

    async def _close_if_revoked(self) -> None:
        if self._check_key is None:
            return
        try:
            await self._check_key()
        except Unauthorized as error:
            await self.close(POLICY_VIOLATION, str(error).partition(":")[0])
            raise
