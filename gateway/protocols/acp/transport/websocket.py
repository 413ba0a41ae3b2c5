"""ACP over WebSocket: each frame one message, in both directions (the RFD "Streamable HTTP & WebSocket transport")."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.errors import GatewayError, Unauthorized
from gateway.gateway import Gateway
from gateway.protocols.acp.transport.loading import connection_class
from gateway.protocols.acp.transport.stdio import NOT_JSON, parsed

if TYPE_CHECKING:
    from gateway.protocols.acp.connection import Connection

BEARER = "bearer."
"""With the key behind it a subprotocol: a web page cannot give a WebSocket headers."""
GOING_AWAY, POLICY_VIOLATION = 1001, 1008
LOOK_EVERY = 30.0
"""Seconds between looks whether the key of a quiet client is still in force."""


class WebSockets:
    """All clients of this transport."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._open: set[WebSocket] = set()

    async def serve(self, agent: str, socket: WebSocket) -> None:
        """Carry one client's messages until it goes. Refused with the status and the text that an HTTP request would get."""
        subprotocol = next((name for name in socket.scope.get("subprotocols", ()) if name.startswith(BEARER)), None)
        key = subprotocol.removeprefix(BEARER) if subprotocol else None
        check = partial(self._gateway.auth.check, socket.headers.get("authorization"), key)
        try:
            caller = check()
            self._gateway.agents.get(agent)
        except GatewayError as error:
            return await socket.send_denial_response(JSONResponse({"error": str(error)}, error.status))
        kind = await connection_class()
        await socket.accept(subprotocol, headers=[(b"acp-connection-id", uuid.uuid4().hex.encode())])
        self._open.add(socket)
        # A default key cannot be taken back while the daemon runs.
        frames = _Frames(socket, check if caller.name is not None else None)
        connection = kind(self._gateway, agent, caller, frames.send)
        try:
            while True:
                for message in _messages(await frames.receive()):
                    await _take(connection, frames, message)
        except (WebSocketDisconnect, Unauthorized):
            pass
        finally:
            self._open.discard(socket)
            await connection.close()

    async def close(self) -> None:
        """Say goodbye to all: the gateway goes down."""
        for socket in list(self._open):
            with suppress(RuntimeError, WebSocketDisconnect):
                await socket.close(GOING_AWAY, "the gateway was shut down")


class _Frames:
    """A socket that is closed as soon as `check` raises Unauthorized."""

    def __init__(self, socket: WebSocket, check: Callable[[], object] | None) -> None:
        self._socket, self._check = socket, check

    async def send(self, message: dict[str, Any]) -> None:
        """One message. Waits for a client that reads slowly."""
        await self._look()
        await self._socket.send_text(to_json(message).decode())

    async def receive(self) -> Any:
        """The next frame. Raises WebSocketDisconnect, Unauthorized."""
        while True:
            try:
                async with asyncio.timeout(None if self._check is None else LOOK_EVERY):
                    frame = await self._socket.receive()
            except TimeoutError:
                await self._look()
                continue
            if frame["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(frame.get("code", 1000))
            await self._look()
            return frame

    async def _look(self) -> None:
        if self._check is None:
            return
        try:
            self._check()
        except Unauthorized as error:
            with suppress(RuntimeError, WebSocketDisconnect):
                await self._socket.close(POLICY_VIOLATION, str(error).partition(":")[0])
            raise


async def _take(connection: Connection, frames: _Frames, message: Any) -> None:
    if message is NOT_JSON:
        return await frames.send(NOT_JSON)
    await connection.receive(message)


def _messages(frame: Any) -> Iterator[Any]:
    """The messages of a frame, NOT_JSON for what is none.

    The clients of today send one a frame; use-acp 0.2.6 sends them as lines, in binary frames.
    """
    text: str | None = frame.get("text")
    data: Any = (frame.get("bytes") or b"") if text is None else text
    try:
        yield parsed(data)
    except ValueError:
        for line in data.split(b"\n" if text is None else "\n"):
            if line.strip():
                yield _parsed(line)


def _parsed(line: str | bytes) -> Any:
    try:
        return parsed(line)
    except ValueError:
        return NOT_JSON
