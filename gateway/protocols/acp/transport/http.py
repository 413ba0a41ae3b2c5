"""ACP over streamable HTTP (the RFD "Streamable HTTP & WebSocket transport"): a POST for each message of the client's, answered
with 202, and a GET for each stream of the agent's.

Where the two official clients differ from each other (measured: npm 2.4.0, PyPI 0.12.1), both are served: a POSTed answer and
the opening of a session need no session header, a session's stream may be opened before the session is, and nothing about one
session closes the connection.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from fastapi import Request, Response
from pydantic_core import from_json
from starlette.responses import JSONResponse

from gateway.errors import BadRequest, ClientError, NotFound, Unauthorized
from gateway.gateway import Gateway
from gateway.protocols.acp.transport.http_streams import HttpClient
from gateway.protocols.acp.transport.loading import connection_class
from gateway.protocols.sse import event_stream
from gateway.security.authentication import Caller

CONNECTION, SESSION = "acp-connection-id", "acp-session-id"
UNHEARD = 600.0
"""Seconds until a client that reads no stream and sends nothing is forgotten; its sessions stay."""
LOOK_EVERY = 30.0
"""Seconds from one look for such clients to the next, and for those whose key was taken back."""
FIRST_ANSWER = 60.0


class HttpClients:
    """All clients of this transport."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._clients: dict[str, HttpClient] = {}
        self._looking: asyncio.Task[None] | None = None

    async def post(self, agent: str, caller: Caller, request: Request) -> Response:
        """Take one message. `initialize` without a connection id makes a connection."""
        message = _message(await request.body())
        connection_id, session_id = request.headers.get(CONNECTION), request.headers.get(SESSION)
        if connection_id is None:
            if message.get("method") != "initialize":
                raise BadRequest("Acp-Connection-Id: missing; send initialize first, its answer has this header")
            return await self._initialize(agent, caller, message, request)
        client = self._find(agent, caller, connection_id, request)
        client.expect(message, _session_of(message, session_id), named=session_id is not None)
        await client.connection.receive(message)
        return Response(status_code=202)

    async def get(self, agent: str, caller: Caller, request: Request) -> Response:
        """The stream of the connection, or of a session, open here or not.

        Of one that there is not, too: the TypeScript client opens the stream before it asks for the session, and takes a 404 for
        the end of its connection. It reads there that there is no such session.
        """
        if "text/event-stream" not in request.headers.get("accept", "") and "*/*" not in request.headers.get("accept", ""):
            return JSONResponse({"error": "Accept: ask for text/event-stream"}, 406)
        client = self._find(agent, caller, request.headers.get(CONNECTION), request)
        stream = client.attach(request.headers.get(SESSION))
        response = event_stream(stream.read(), self._gateway.keep_alive)
        response.headers[CONNECTION] = client.id
        return response

    async def delete(self, agent: str, caller: Caller, request: Request) -> Response:
        """The client is gone; its sessions stay."""
        await self._forget(self._find(agent, caller, request.headers.get(CONNECTION), request))
        return Response(status_code=202)

    async def close(self) -> None:
        """End every stream: the gateway goes down."""
        if self._looking is not None:
            self._looking.cancel()
        await asyncio.gather(*(self._forget(client) for client in list(self._clients.values())))

    async def _initialize(self, agent: str, caller: Caller, message: dict[str, Any], request: Request) -> Response:
        self._gateway.agents.get(agent)
        if not isinstance(message.get("id"), int | str):
            raise BadRequest("id: initialize is a request; give it a number or a text")
        client = HttpClient(await connection_class(), self._gateway, agent, caller)
        self._clients[client.id] = client
        self._heard(client, request)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="look for ACP clients that are gone")
        answer = client.first(message["id"])
        await client.connection.receive(message)
        async with asyncio.timeout(FIRST_ANSWER):
            found = await answer
        return JSONResponse(found, headers={CONNECTION: client.id})

    def _find(self, agent: str, caller: Caller, connection_id: str | None, request: Request) -> HttpClient:
        if connection_id is None:
            raise BadRequest("Acp-Connection-Id: missing; it is a header of the answer to initialize")
        client = self._clients.get(connection_id)
        if client is None or client.closed or client.caller != caller or client.agent != agent:
            raise NotFound("Acp-Connection-Id: there is no such connection here (any more); initialize a new one")
        self._heard(client, request)
        return client

    def _heard(self, client: HttpClient, request: Request) -> None:
        client.heard = time.monotonic()
        client.allowed = partial(self._gateway.auth.check, request.headers.get("authorization"))

    async def _forget(self, client: HttpClient) -> None:
        self._clients.pop(client.id, None)
        client.end()
        await client.connection.close()

    async def _look(self) -> None:
        """Forget clients that are gone, as long as there is any."""
        while self._clients:
            await asyncio.sleep(LOOK_EVERY)
            lost = [client for client in self._clients.values() if _is_gone(client)]
            await asyncio.gather(*(self._forget(client) for client in lost))


def _is_gone(client: HttpClient) -> bool:
    now = time.monotonic()
    if client.reading:
        client.heard = now
    try:
        client.allowed()
    except Unauthorized:
        return True
    return client.closed or now - client.heard > UNHEARD


def _message(body: bytes) -> dict[str, Any]:
    try:
        message = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if isinstance(message, list):
        raise _Batch()
    if not isinstance(message, dict):
        raise BadRequest("the body must be one JSON-RPC message, an object")
    return message


class _Batch(ClientError):
    """A message of JSON-RPC that the protocol has not."""

    status = 501

    def __init__(self) -> None:
        super().__init__("the protocol has no batches; send one message a request")


def _session_of(message: dict[str, Any], header: str | None) -> str | None:
    """The session that a message is about. Raises BadRequest where its header is missing, or names another."""
    method, params = message.get("method"), message.get("params")
    named = params.get("sessionId") if isinstance(params, dict) else None
    if method is None or not isinstance(named, str):
        return header
    if header is not None and header != named:
        raise BadRequest(f"Acp-Session-Id: it is {header!r}, but params.sessionId is {named!r}")
    if header is None and method not in _WITHOUT_HEADER:
        raise BadRequest(f"Acp-Session-Id: missing; {method} is about a session")
    return named


_WITHOUT_HEADER = frozenset({"session/load", "session/resume", "session/delete", "session/fork"})
