"""ACP over WebSocket: each frame carries one message, in both directions.

Protocol page: the RFD "Streamable HTTP & WebSocket transport", https://agentclientprotocol.com/rfds/streamable-http-websocket-transport
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.app import Gateway
from gateway.cluster.forwarding.wire import LAST_REQUEST_ID
from gateway.errors import GatewayError, NoNode, Unauthorized
from gateway.protocols.acp.connection import Connection
from gateway.protocols.acp.initialization import acp_command
from gateway.protocols.acp.transport.messages import PARSE_ERROR, parse_message
from gateway.protocols.acp.transport.websocket_frames import GOING_AWAY, Frames
from gateway.security.authentication import Caller, is_forwarded
from gateway.security.quotas import RequestQuotas

BEARER = "bearer."
"""Prefix of a subprotocol that carries the API key, for web pages: a browser cannot set headers on a WebSocket."""

NODE_ENDED = "the node of this connection has ended; connect again"


class WebSockets:
    """All clients of this transport."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._open: set[WebSocket] = set()

    async def serve(self, agent: str, socket: WebSocket) -> None:
        """Carry the messages of one client of the agent until it disconnects.

        Without a valid key, or for an unknown agent, the client is refused with the status and the body of an HTTP request.
        """
        subprotocol = next((name for name in socket.scope.get("subprotocols", ()) if name.startswith(BEARER)), None)
        key = subprotocol.removeprefix(BEARER) if subprotocol else None
        authorization, forwarded = socket.headers.get("authorization"), is_forwarded(socket.scope)
        try:
            caller = await self._gateway.authenticated(socket.scope, authorization, key)
            # Only named keys can be revoked while the daemon runs. The node to which a client is connected checks its key.
            is_checked = caller.name is not None and not forwarded
            check_key = partial(self._gateway.auth.check, authorization, key, again=True) if is_checked else None
            frames = Frames(socket, check_key, self._gateway.clock)
            connection = self._connection(agent, caller, socket, frames)
            quotas = RequestQuotas(self._gateway.quotas, caller.name, forwarded=forwarded)
        except GatewayError as error:
            return await _deny(socket, error)
        try:
            await connection.open()
            await socket.accept(subprotocol, headers=[(b"acp-connection-id", uuid.uuid4().hex.encode())])
            self._open.add(socket)
            await _carry(frames, connection)
        except NoNode as error:
            await _deny(socket, error)
        finally:
            self._open.discard(socket)
            await connection.close()
            quotas.release()

    def _connection(self, agent: str, caller: Caller, socket: WebSocket, frames: Frames) -> Connection:
        parameters = socket.query_params
        # The bridge of a `portico acp` on this machine asks for it: its editor can run that command in a terminal.
        started = caller.name is None and parameters.get("terminal_login") == "on"
        connection = Connection(
            self._gateway,
            agent,
            caller,
            frames.send,
            frames.send_all,
            slash_commands=parameters.get("slash_commands"),
            login_command=acp_command(agent, self._gateway.settings) if started else None,
            last_request_id=int(parameters.get(LAST_REQUEST_ID, 0)) if is_forwarded(socket.scope) else 0,
            absent=self._gateway.agent_elsewhere(agent) is not None,
        )
        connection.disconnect = partial(frames.close, GOING_AWAY, NODE_ENDED)
        return connection

    async def close(self) -> None:
        """Close all sockets with the code 1001, because the gateway shuts down."""
        for socket in list(self._open):
            with suppress(RuntimeError, WebSocketDisconnect):
                await socket.close(GOING_AWAY, "the gateway was shut down")


async def _carry(frames: Frames, connection: Connection) -> None:
    """Carry the messages of a client until it disconnects, or its key is revoked."""
    with suppress(WebSocketDisconnect, Unauthorized):
        while True:
            for message in _messages(await frames.receive()):
                if message is PARSE_ERROR:
                    await frames.send(PARSE_ERROR)
                else:
                    await connection.receive(message)


async def _deny(socket: WebSocket, error: GatewayError) -> None:
    await socket.send_denial_response(JSONResponse({"error": str(error)}, error.status, error.headers))


def _messages(frame: Any) -> Iterator[Any]:
    """Yield the messages of a frame, and PARSE_ERROR for each that is not JSON.

    Most clients send one message per frame; use-acp 0.2.6 sends lines of messages in binary frames.
    """
    text: str | None = frame.get("text")
    data: Any = (frame.get("bytes") or b"") if text is None else text
    try:
        yield parse_message(data)
    except ValueError:
        for line in data.split(b"\n" if text is None else "\n"):
            if line.strip():
                yield _message_or_error(line)


def _message_or_error(line: str | bytes) -> Any:
    try:
        return parse_message(line)
    except ValueError:
        return PARSE_ERROR
