"""The endpoints over MCP's streamable HTTP: who may come in, and one MCP server for each endpoint.

The protocol's package takes a third of a second and 24 MB to import: `gateway/mcp/host.py` imports this module when the first
endpoint is opened.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from weakref import WeakKeyDictionary

from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ImageContent,
    ListToolsResult,
    TextContent,
    Tool,
    ToolAnnotations,
)
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from drivers.contract.info import ToolSpec
from drivers.contract.messages import Content, ImageBlock, TextBlock, blocks, parse_data_uri
from drivers.contract.tool_server import ToolResponse
from gateway import __version__
from gateway.mcp.endpoints import Endpoint, Endpoints

log = logging.getLogger(__name__)

NAME = "portico"
PATH = "/mcp"
MAX_CALL = 64 * 1024 * 1024
"""Bytes of a call with its arguments, at most."""
SIGN_OF_LIFE = 10.0
"""Seconds between two progress notifications of a call that waits, to agents that ask for them. The stream itself has a
comment every 15 s: an answer in one piece would be given up by node's fetch after a minute (gemini 0.61.0)."""
ALLOWED_HOSTS = ["127.0.0.1:*", "localhost:*", "[::1]:*"]


class McpApp:
    """The ASGI application: a bearer token leads to its endpoint, nothing else leads anywhere."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._servers: WeakKeyDictionary[Endpoint, McpServer] = WeakKeyDictionary()
        # It tells of sessions at every call; what goes wrong stays to be seen.
        logging.getLogger("mcp").setLevel(logging.WARNING)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        endpoint = self._endpoints.find(token.strip()) if scheme.lower() == "bearer" else None
        if endpoint is None:
            text = "no such token, or its session has ended; only the agent that the gateway started has one"
            return await _refuse(401, text)(scope, receive, send)
        if scope["path"].rstrip("/") != PATH:
            return await _refuse(404, f"there is only {PATH} here")(scope, receive, send)
        server = self._servers.get(endpoint)
        if server is None:
            server = self._servers[endpoint] = McpServer(endpoint)
        await server.handle(scope, receive, send)

    async def close(self) -> None:
        """Wait for the servers, whose endpoints are closed."""
        for server in list(self._servers.values()):
            await server.wait()


class McpServer:
    """An endpoint as an MCP server. It ends with the endpoint, and every connection to it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        server: Server[Any] = Server(NAME, version=__version__, on_list_tools=self._list, on_call_tool=self._call)
        self._manager = StreamableHTTPSessionManager(
            server,
            # Not a page in a browser, whatever name it has for this address.
            security_settings=TransportSecuritySettings(allowed_hosts=ALLOWED_HOSTS, allowed_origins=[]),
            max_request_body_size=MAX_CALL,
            # How long an agent is idle is the gateway's to say: it would not come back.
            session_idle_timeout=None,
        )
        self._ready = asyncio.Event()
        self._life = asyncio.create_task(self._live(), name="mcp server")

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._ready.wait()
        await self._manager.handle_request(scope, receive, send)

    async def wait(self) -> None:
        await asyncio.wait([self._life])

    async def _live(self) -> None:
        async with self._manager.run():
            self._ready.set()
            await self._endpoint.closed.wait()

    async def _list(self, _context: Any, _params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[_tool(tool) for tool in self._endpoint.tools])

    async def _call(self, context: Any, params: CallToolRequestParams) -> CallToolResult:
        meta: dict[str, Any] = dict(params.meta or {})
        keys = self._endpoint.call_id_keys
        call_id: str | None = next((meta[key] for key in keys if isinstance(meta.get(key), str)), None)
        call = asyncio.create_task(self._endpoint.call(params.name, params.arguments or {}, call_id))
        signs = 0
        try:
            while not (await asyncio.wait([call], timeout=SIGN_OF_LIFE))[0]:
                signs += 1
                await context.session.report_progress(signs, message="waiting for the application")
            return _result(call.result())
        finally:
            call.cancel()


def _tool(tool: ToolSpec) -> Tool:
    # Read-only: else some agents call one tool after the other. What it does is the application's own affair.
    annotations = ToolAnnotations(read_only_hint=True)
    schema = {"type": "object", **tool.input_schema}
    return Tool(name=tool.name, title=tool.title, description=tool.description, input_schema=schema, annotations=annotations)


def _result(answer: ToolResponse) -> CallToolResult:
    return CallToolResult(content=_content(answer.content), is_error=answer.is_error)


def _content(content: Content) -> list[Any]:
    found: list[Any] = []
    for block in blocks(content):
        if isinstance(block, TextBlock):
            found.append(TextContent(type="text", text=block.text))
        elif isinstance(block, ImageBlock) and (data := parse_data_uri(block.url)):
            found.append(ImageContent(type="image", mime_type=data[0], data=data[1]))
        elif isinstance(block, ImageBlock):
            # MCP has no images by address.
            found.append(TextContent(type="text", text=f"[image: {block.url}]"))
    return found


def _refuse(status: int, text: str) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": text}, status, headers)
