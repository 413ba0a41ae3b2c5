"""ACP over streamable HTTP: a POST for each message of the client, answered with 202, and a GET for each stream of the agent.

Protocol page: the RFD "Streamable HTTP & WebSocket transport", https://agentclientprotocol.com/rfds/streamable-http-websocket-transport

Where the two official clients differ (measured: npm 2.4.0, PyPI 0.12.1), both are accepted: a POSTed response, and a request that
opens a session, need no session header; a session's stream may be opened before the session; an error about one session never
closes the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable
from functools import partial
from typing import Any

from fastapi import Request, Response
from starlette.responses import JSONResponse

from gateway.app import Gateway
from gateway.errors import AgentProblem, BadRequest, ClientError, NotFound, StoreUnavailable, Unauthorized
from gateway.protocols.acp.connection import checked_slash_commands
from gateway.protocols.acp.transport.http_streams import HttpClient
from gateway.protocols.acp.transport.messages import parse_message
from gateway.protocols.authorization import authorization
from gateway.protocols.sse import event_stream
from gateway.security.authentication import Caller, is_forwarded, request_is_forwarded

CONNECTION_ID_HEADER, SESSION_ID_HEADER = "acp-connection-id", "acp-session-id"
NODE_SEPARATOR = "-"
"""Between the id of the node, by which other nodes find it, and that of a connection."""
CLIENT_TIMEOUT = 600.0
"""Seconds after which a client that reads no stream and sends nothing is disconnected. Its sessions stay."""
CHECK_INTERVAL = 30.0
"""Seconds between checks for clients that have timed out or whose API key was revoked."""
INITIALIZE_TIMEOUT = 60.0
"""Seconds to wait for the answer to `initialize`, which is the body of its POST."""
_SESSION_HEADER_OPTIONAL = frozenset({"session/load", "session/resume", "session/delete", "session/fork"})


class HttpClients:
    """All clients of this transport."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._clients: dict[str, HttpClient] = {}
        self._checks: asyncio.Task[None] | None = None

    async def post(self, agent: str, caller: Caller, request: Request) -> Response:
        """Accept one message. `initialize` without a connection id creates a connection.

        Raises BadRequest for an invalid message, a missing header or an unknown agent, NotFound for an unknown connection, and
        SessionElsewhere where another node has the connection, or only another one has the agent. Raises AgentProblem, and
        leaves no connection, if `initialize` has no answer within INITIALIZE_TIMEOUT.
        """
        message = _message(await request.body())
        connection_id, session_id = request.headers.get(CONNECTION_ID_HEADER), request.headers.get(SESSION_ID_HEADER)
        if connection_id is None:
            if message.get("method") != "initialize":
                raise BadRequest("Acp-Connection-Id: missing; send initialize first, its answer has this header")
            return await self._initialize(agent, caller, message, request)
        client = await self._find(agent, caller, connection_id, request)
        client.expect(message, _session_of(message, session_id), has_session_header=session_id is not None)
        # The connection is of this node, also where another one has forwarded the message. Its sessions may be at any node.
        request_is_forwarded.set(False)
        await client.connection.receive(message)
        return Response(status_code=202)

    async def get(self, agent: str, caller: Caller, request: Request) -> Response:
        """Return the stream of the connection, or of a session, also of one that is not open on this connection.

        The TypeScript client opens the stream before it requests the session, and takes a 404 for the end of its connection. It
        gets the error of an unknown session as the answer to its request.
        Raises NotFound for an unknown connection, Conflict while the stream has another reader.
        """
        if "text/event-stream" not in request.headers.get("accept", "") and "*/*" not in request.headers.get("accept", ""):
            return JSONResponse({"error": "Accept: must include text/event-stream"}, 406)
        client = await self._find(agent, caller, request.headers.get(CONNECTION_ID_HEADER), request)
        stream = client.attach(request.headers.get(SESSION_ID_HEADER))
        response = event_stream(stream.read(), self._gateway.keep_alive, clock=self._gateway.clock)
        response.headers[CONNECTION_ID_HEADER] = client.id
        return response

    async def delete(self, agent: str, caller: Caller, request: Request) -> Response:
        """End a connection. Its sessions stay. Raises NotFound for an unknown connection."""
        await self._disconnect(await self._find(agent, caller, request.headers.get(CONNECTION_ID_HEADER), request))
        return Response(status_code=202)

    async def close(self) -> None:
        """End all connections, because the gateway shuts down."""
        if self._checks is not None:
            self._checks.cancel()
        await asyncio.gather(*(self._disconnect(client) for client in list(self._clients.values())))

    async def _initialize(self, agent: str, caller: Caller, message: dict[str, Any], request: Request) -> Response:
        if (elsewhere := self._gateway.agent_elsewhere(agent)) is not None:
            # The connection is at that node then, which its id says.
            raise elsewhere
        self._gateway.agents.get(agent)
        if not isinstance(message.get("id"), int | str):
            raise BadRequest("id: initialize is a request; its id must be a number or a string")
        slash_commands = checked_slash_commands(request.query_params.get("slash_commands"))
        release = self._gateway.quotas.connections.take(caller.name)
        node = f"{self._gateway.node.id}{NODE_SEPARATOR}" if self._gateway.node is not None else ""
        client = HttpClient(self._gateway, agent, caller, slash_commands=slash_commands, node=node)
        client.connection.disconnect = partial(self._disconnect, client)
        self._clients[client.id] = client
        client.released = release
        self._record_use(client, request)
        if self._checks is None or self._checks.done():
            self._checks = asyncio.create_task(self._check_clients(), name="check ACP clients over HTTP")
        try:
            answer = client.capture_answer(message["id"])
            async with self._gateway.clock.timeout(INITIALIZE_TIMEOUT):
                await client.connection.receive(message)
                body = await answer
        except BaseException as error:
            # The client has no id by which it could end this connection.
            await self._disconnect(client)
            if isinstance(error, TimeoutError):
                text = f"agent {agent!r} was not ready for a connection within {INITIALIZE_TIMEOUT:g} s; try again"
                raise AgentProblem(text) from None
            raise
        return JSONResponse(body, headers={CONNECTION_ID_HEADER: client.id})

    async def _find(self, agent: str, caller: Caller, connection_id: str | None, request: Request) -> HttpClient:
        """The client of a connection. Raises BadRequest, NotFound, and SessionElsewhere where another node has the connection."""
        if connection_id is None:
            raise BadRequest("Acp-Connection-Id: missing; it is a header of the answer to initialize")
        client = self._clients.get(connection_id)
        if client is None and self._gateway.node is not None:
            node, _, own = connection_id.rpartition(NODE_SEPARATOR)
            directory = self._gateway.node.directory
            if own and node != directory.node and directory.lives(node) and not is_forwarded(request.scope):
                raise await directory.elsewhere(node, connection_id)
        if client is None or client.closed or client.caller != caller or client.agent != agent:
            raise NotFound("Acp-Connection-Id: no such connection, or it has ended; send initialize without this header")
        self._record_use(client, request)
        return client

    def _record_use(self, client: HttpClient, request: Request) -> None:
        client.last_used = self._gateway.clock.monotonic()
        if is_forwarded(request.scope):
            # The other node has checked the key, which is not known here. What this node has checked itself is checked on.
            return
        client.check_key = partial(self._gateway.auth.check, authorization(request.headers), again=True)

    async def _disconnect(self, client: HttpClient) -> None:
        self._clients.pop(client.id, None)
        client.released()
        client.end()
        await client.connection.close()

    async def _check_clients(self) -> None:
        """Disconnect expired clients until there are no clients."""
        while self._clients:
            await self._gateway.clock.sleep(CHECK_INTERVAL)
            # Before the names are read: a client that comes meanwhile may have a key that is newer.
            clients = list(self._clients.values())
            names, now = await self._key_names(clients), self._gateway.clock.monotonic()
            expired = [client for client in clients if client.id in self._clients and await _has_expired(client, names, now)]
            await asyncio.gather(*(self._disconnect(client) for client in expired))

    async def _key_names(self, clients: Iterable[HttpClient]) -> set[str | None] | None:
        """The names of all keys, that of the default keys included; None if no client is checked by its name, or none can be."""
        if not any(client.check_key is None and client.caller.name is not None for client in clients):
            return None
        try:
            return {None, *(key.name for key in await self._gateway.credentials.keys())}
        except StoreUnavailable:
            return None


async def _has_expired(client: HttpClient, key_names: Container[str | None] | None, now: float) -> bool:
    if client.has_reader:
        client.last_used = now
    if client.check_key is not None:
        try:
            await client.check_key()
        except Unauthorized:
            return True
    elif key_names is not None and client.caller.name not in key_names:
        return True
    return client.closed or now - client.last_used > CLIENT_TIMEOUT


def _message(body: bytes) -> dict[str, Any]:
    try:
        message = parse_message(body)
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if isinstance(message, list):
        raise _BatchNotSupported()
    if not isinstance(message, dict):
        raise BadRequest("the body must be one JSON-RPC message, an object")
    if "method" in message and not isinstance(message["method"], str):
        raise BadRequest("method: must be a string")
    return message


class _BatchNotSupported(ClientError):
    """The body is a batch of JSON-RPC messages, which the protocol does not have."""

    status = 501

    def __init__(self) -> None:
        super().__init__("the protocol has no batches; send one message per request")


def _session_of(message: dict[str, Any], header: str | None) -> str | None:
    """Return the id of the session that a message belongs to, if any. Raises BadRequest if the header is missing or differs."""
    method, params = message.get("method"), message.get("params")
    session_id = params.get("sessionId") if isinstance(params, dict) else None
    if method is None or not isinstance(session_id, str):
        return header
    if header is not None and header != session_id:
        raise BadRequest(f"Acp-Session-Id: it is {header!r}, but params.sessionId is {session_id!r}")
    if header is None and method not in _SESSION_HEADER_OPTIONAL:
        raise BadRequest(f"Acp-Session-Id: missing; {method} belongs to a session")
    return session_id
