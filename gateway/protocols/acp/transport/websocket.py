"""ACP over WebSocket: each frame carries one message, in both directions.

Protocol page: the RFD "Streamable HTTP & WebSocket transport", https://agentclientprotocol.com/rfds/streamable-http-websocket-transport
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.asgi_extensions import WEBSOCKET_TEXTS
from gateway.errors import GatewayError, Unauthorized
from gateway.gateway import Gateway
from gateway.protocols.acp.connection import Connection, checked_slash_commands
from gateway.protocols.acp.initialization import acp_command
from gateway.protocols.acp.transport.messages import PARSE_ERROR, parse_message
from gateway.protocols.forwarding.passed_on import is_forwarded
from gateway.security.authentication import Caller
from gateway.security.quotas import RequestQuotas

if TYPE_CHECKING:
    pass

BEARER = "bearer."
"""Prefix of a subprotocol that carries the API key, for web pages: a browser cannot set headers on a WebSocket."""
GOING_AWAY, POLICY_VIOLATION = 1001, 1008
KEY_CHECK_INTERVAL = 30.0
"""Seconds between checks whether the API key of an idle client is still valid."""


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
        authorization = socket.headers.get("authorization")
        try:
            caller = await self._gateway.authenticated(socket.scope, authorization, key)
            self._gateway.agents.get(agent)
            checked_slash_commands(socket.query_params.get("slash_commands"))
            quotas = RequestQuotas(self._gateway.quotas, caller.name, forwarded=is_forwarded(socket.scope))
        except GatewayError as error:
            return await socket.send_denial_response(JSONResponse({"error": str(error)}, error.status))
        # Only named keys can be revoked while the daemon runs. The node to which a client is connected checks its key.
        is_checked = caller.name is not None and not is_forwarded(socket.scope)
        check_key = partial(self._gateway.auth.check, authorization, key) if is_checked else None
        try:
            await self._serve_client(agent, socket, subprotocol, caller, check_key)
        finally:
            quotas.release()

    async def _serve_client(
        self, agent: str, socket: WebSocket, subprotocol: str | None, caller: Caller, check_key: Callable[[], object] | None
    ) -> None:
        await socket.accept(subprotocol, headers=[(b"acp-connection-id", uuid.uuid4().hex.encode())])
        self._open.add(socket)
        frames = _Frames(socket, check_key)
        slash_commands = socket.query_params.get("slash_commands")
        # The bridge of a `portico acp` on this machine asks for it: its editor can run that command in a terminal.
        started = caller.name is None and socket.query_params.get("terminal_login") == "on"
        connection = Connection(
            self._gateway,
            agent,
            caller,
            frames.send,
            frames.send_all,
            slash_commands=slash_commands,
            login_command=acp_command(agent, self._gateway.settings) if started else None,
            relayed=not is_forwarded(socket.scope),
        )
        try:
            while True:
                for message in _messages(await frames.receive()):
                    if message is PARSE_ERROR:
                        await frames.send(PARSE_ERROR)
                    else:
                        await connection.receive(message)
        except (WebSocketDisconnect, Unauthorized):
            pass
        finally:
            self._open.discard(socket)
            await connection.close()

    async def close(self) -> None:
        """Close all sockets with the code 1001, because the gateway shuts down."""
        for socket in list(self._open):
            with suppress(RuntimeError, WebSocketDisconnect):
                await socket.close(GOING_AWAY, "the gateway was shut down")


class _Frames:
    """A socket that closes itself with the code 1008 as soon as `check_key` raises Unauthorized."""

    def __init__(self, socket: WebSocket, check_key: Callable[[], object] | None) -> None:
        self._socket, self._check_key = socket, check_key

    async def send(self, message: dict[str, Any]) -> None:
        """Send one message. Waits while the client does not read. Raises WebSocketDisconnect, Unauthorized."""
        await self._close_if_revoked()
        await self._socket.send_text(to_json(message).decode())

    async def send_all(self, messages: Sequence[dict[str, Any]]) -> None:
        """Send messages, by one write if the server can. Raises as `send` does."""
        if WEBSOCKET_TEXTS not in self._socket.scope.get("extensions", {}):
            for message in messages:
                await self.send(message)
            return
        await self._close_if_revoked()
        await self._socket.send({"type": "websocket.send", WEBSOCKET_TEXTS: [to_json(message) for message in messages]})

    async def receive(self) -> Any:
        """Return the next frame. Raises WebSocketDisconnect, Unauthorized."""
        while True:
            try:
                async with asyncio.timeout(None if self._check_key is None else KEY_CHECK_INTERVAL):
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
            self._check_key()
        except Unauthorized as error:
            with suppress(RuntimeError, WebSocketDisconnect):
                await self._socket.close(POLICY_VIOLATION, str(error).partition(":")[0])
            raise


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
