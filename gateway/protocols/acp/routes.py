"""The path `/acp/AGENT`, which serves each agent of the gateway to ACP clients over WebSocket and streamable HTTP."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.websockets import WebSocket

from gateway.gateway import Gateway
from gateway.protocols.acp import examples
from gateway.protocols.acp.transport.http import HttpClients
from gateway.protocols.acp.transport.websocket import WebSockets
from gateway.protocols.authenticated_routes import CurrentCaller, CurrentQuotas, authenticated_route

PATH = "/acp/{agent}"


def router(gateway: Gateway) -> APIRouter:
    """Return the routes of both transports. Their connections are closed when the gateway closes."""
    routes = APIRouter(tags=["ACP"], route_class=authenticated_route(gateway))
    clients, sockets = HttpClients(gateway), WebSockets(gateway)
    gateway.close_last += [clients.close, sockets.close]

    @routes.post(PATH, status_code=202, response_class=Response, responses=examples.BATCH, openapi_extra=examples.SEND)
    async def acp_message(agent: str, caller: CurrentCaller, request: Request) -> Response:
        """Accept one JSON-RPC message of the client. `initialize` is answered in the response, other requests on a stream."""
        return await clients.post(agent, caller, request)

    @routes.get(PATH, response_class=Response, responses=examples.NO_STREAM, openapi_extra=examples.LISTEN)
    async def acp_stream(agent: str, caller: CurrentCaller, quotas: CurrentQuotas, request: Request) -> Response:
        """Stream the messages of a connection, or with Acp-Session-Id those of a session."""
        quotas.take_stream()
        return await clients.get(agent, caller, request)

    @routes.delete(PATH, status_code=202, response_class=Response, openapi_extra=examples.HEADERS)
    async def acp_disconnect(agent: str, caller: CurrentCaller, request: Request) -> Response:
        """End a connection. Its sessions stay."""
        return await clients.delete(agent, caller, request)

    @routes.websocket(PATH)
    async def acp_socket(agent: str, socket: WebSocket) -> None:
        await sockets.serve(agent, socket)

    return routes
