"""ACP over WebSocket: each frame one message, in both directions (the RFD "Streamable HTTP & WebSocket transport")."""

from __future__ import annotations

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
from gateway.protocols.acp.lines import NOT_JSON, parsed
from gateway.protocols.acp.loading import connection_class
from gateway.security import Caller

if TYPE_CHECKING:
    from gateway.protocols.acp.connection import Connection

BEARER = "bearer."
"""With the key behind it a subprotocol: a web page cannot give a WebSocket headers."""
GOING_AWAY, REFUSED = 1001, 1008


class WebSockets:
    """All clients of this transport."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._open: set[WebSocket] = set()

    async def serve(self, agent: str, socket: WebSocket) -> None:
        """Carry one client's messages until it goes. Refused with the status and the text that an HTTP request would get."""
        subprotocol = next((name for name in socket.scope.get("subprotocols", ()) if name.startswith(BEARER)), None)
        try:
            key = subprotocol.removeprefix(BEARER) if subprotocol else None
            check = partial(self._gateway.auth.check, socket.headers.get("authorization"), key)
            caller = check()
            self._gateway.agents.get(agent)
        except GatewayError as error:
            return await socket.send_denial_response(JSONResponse({"error": str(error)}, error.status))
        kind = await connection_class()
        await socket.accept(subprotocol, headers=[(b"acp-connection-id", uuid.uuid4().hex.encode())])
        self._open.add(socket)
        connection = kind(self._gateway, agent, caller, partial(_send_checked, socket, check))
        try:
            while True:
                frame = await socket.receive()
                check()
                for line in _lines(frame):
                    await _take(connection, socket, line)
        except WebSocketDisconnect:
            pass
        except Unauthorized as error:
            with suppress(RuntimeError):
                await socket.close(REFUSED, str(error))
        finally:
            self._open.discard(socket)
            await connection.close()

    async def close(self) -> None:
        """Say goodbye to all: the gateway goes down."""
        for socket in list(self._open):
            with suppress(RuntimeError, WebSocketDisconnect):
                await socket.close(GOING_AWAY, "the gateway was shut down")


async def _send_checked(socket: WebSocket, check: Callable[[], Caller], message: dict[str, Any]) -> None:
    """Send, unless the key was taken back meanwhile: then the connection is closed."""
    try:
        check()
    except Unauthorized as error:
        await socket.close(REFUSED, str(error))
        raise
    await _send(socket, message)


async def _send(socket: WebSocket, message: dict[str, Any]) -> None:
    await socket.send_text(to_json(message).decode())


async def _take(connection: Connection, socket: WebSocket, line: str | bytes) -> None:
    try:
        message = parsed(line)
    except ValueError:
        return await _send(socket, NOT_JSON)
    await connection.receive(message)


def _lines(frame: Any) -> Iterator[str | bytes]:
    """The messages of a frame. The clients of today send one a frame; use-acp 0.2.6 sends them as lines, in binary frames."""
    if frame["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(frame.get("code", 1000))
    text: str | None = frame.get("text")
    lines: list[Any] = (frame.get("bytes") or b"").split(b"\n") if text is None else text.split("\n")
    yield from (line for line in lines if line.strip())
