"""`/acp/AGENT`: every agent of the gateway for ACP clients, over WebSocket and over streamable HTTP."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.websockets import WebSocket

from gateway.gateway import Gateway
from gateway.protocols.acp import examples
from gateway.protocols.acp.transport.http import HttpClients
from gateway.protocols.acp.transport.websocket import WebSockets
from gateway.protocols.authentication import CurrentCaller, authenticated_route

PATH = "/acp/{agent}"


def router(gateway: Gateway) -> APIRouter:
    """The routes of both transports."""
    routes = APIRouter(tags=["ACP"], route_class=authenticated_route(gateway.auth))
    clients, sockets = HttpClients(gateway), WebSockets(gateway)
    gateway.close_last += [clients.close, sockets.close]

    @routes.post(PATH, status_code=202, response_class=Response, responses=examples.NOT_TAKEN, openapi_extra=examples.SEND)
    async def acp_message(agent: str, caller: CurrentCaller, request: Request) -> Response:
        """One JSON-RPC message of the client. The answer to `initialize` comes at once, all others on a stream."""
        return await clients.post(agent, caller, request)

    @routes.get(PATH, response_class=Response, responses=examples.NO_STREAM, openapi_extra=examples.LISTEN)
    async def acp_stream(agent: str, caller: CurrentCaller, request: Request) -> Response:
        """The stream of a connection, or with Acp-Session-Id that of a session."""
        return await clients.get(agent, caller, request)

    @routes.delete(PATH, status_code=202, response_class=Response, openapi_extra=examples.HEADERS)
    async def acp_disconnect(agent: str, caller: CurrentCaller, request: Request) -> Response:
        """End a connection; its sessions stay."""
        return await clients.delete(agent, caller, request)

    @routes.websocket(PATH)
    async def acp_socket(agent: str, socket: WebSocket) -> None:
        await sockets.serve(agent, socket)

    return routes
