"""The path `/acp/AGENT`, which serves each agent of the gateway to ACP clients over WebSocket and streamable HTTP."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.websockets import WebSocket

from gateway.app import Gateway
from gateway.protocols.acp.transport.http import HttpClients
from gateway.protocols.acp.transport.websocket import WebSockets
from gateway.protocols.authenticated_routes import CurrentCaller, CurrentQuotas, authenticated_router
from gateway.protocols.route_metadata import BODY, Responses, errors, stream_response

PATH = "/acp/{agent}"
MESSAGE = {"type": "object", "properties": {"jsonrpc": {"const": "2.0"}}, "required": ["jsonrpc"]}
"""The schema of a message. The protocol has its own, which is not repeated."""
INITIALIZE = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1, "clientCapabilities": {}}}
INITIALIZED = {"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}}


def _header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": {"type": "string"}}


HEADERS = {
    "parameters": [
        _header("Acp-Connection-Id", "The header of the answer to `initialize`; required for all other messages."),
        _header("Acp-Session-Id", "The session of the message or of the stream."),
    ]
}
"""For `openapi_extra`. The transport reads these headers, and the body, itself."""
BODY_SCHEMA = {"required": True, "content": {"application/json": {"schema": {**MESSAGE, "examples": [INITIALIZE]}}}}
ANSWERS: Responses = {
    **errors(404, *BODY, 501),
    200: {
        "description": "The answer to `initialize`; its header Acp-Connection-Id names the connection.",
        "content": {"application/json": {"schema": MESSAGE, "example": INITIALIZED}},
    },
}
STREAM: Responses = {
    **errors(404, 406, 409),
    200: stream_response(
        "Server-sent events without names. The data of each is a message of the agent.",
        'data: {"jsonrpc":"2.0","id":1,"result":{"sessionId":"sess_x"}}\n\n',
        {"": MESSAGE},
    ),
}


def router(gateway: Gateway) -> APIRouter:
    """Return the routes of both transports. Their connections are closed when the gateway closes."""
    routes = authenticated_router(gateway, "ACP")
    clients, sockets = HttpClients(gateway), WebSockets(gateway)
    gateway.close_last += [clients.close, sockets.close]

    @routes.post(
        PATH,
        status_code=202,
        response_class=Response,
        responses=ANSWERS,
        openapi_extra={**HEADERS, "requestBody": BODY_SCHEMA},
    )
    async def acp_message(agent: str, caller: CurrentCaller, request: Request) -> Response:
        """Accept one JSON-RPC message of the client. `initialize` is answered in the response, other requests on a stream."""
        return await clients.post(agent, caller, request)

    @routes.get(PATH, response_class=Response, responses=STREAM, openapi_extra=HEADERS)
    async def acp_stream(agent: str, caller: CurrentCaller, quotas: CurrentQuotas, request: Request) -> Response:
        """Stream the messages of a connection, or with Acp-Session-Id those of a session."""
        quotas.take_stream()
        return await clients.get(agent, caller, request)

    @routes.delete(PATH, status_code=202, response_class=Response, responses=errors(404), openapi_extra=HEADERS)
    async def acp_disconnect(agent: str, caller: CurrentCaller, request: Request) -> Response:
        """End a connection. Its sessions stay."""
        return await clients.delete(agent, caller, request)

    @routes.websocket(PATH)
    async def acp_socket(agent: str, socket: WebSocket) -> None:
        await sockets.serve(agent, socket)

    return routes
