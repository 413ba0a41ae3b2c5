"""Serves the endpoints over MCP's streamable HTTP: authentication, and one MCP server for each endpoint.

Importing the `mcp` package takes 0.35 s and 24 MB (2.3.0), so `gateway/application_tools/host.py` imports this module when the
first endpoint is opened. Protocol page: https://modelcontextprotocol.io/specification/2025-11-25/server/tools
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
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
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from drivers.contract.driver_info import ToolSpec
from drivers.contract.messages import Content, ImageBlock, TextBlock, blocks, parse_data_uri
from drivers.contract.tool_server import ToolResponse
from drivers.runtime.clock import Clock
from gateway import __version__
from gateway.application_tools.agent_endpoints import Endpoint, Endpoints
from gateway.http.request_body import RequestBody
from gateway.http.request_head import request_arrived

log = logging.getLogger(__name__)

NAME = "portico"
PATH = "/mcp"
MAX_CALL_BYTES = 64 * 1024 * 1024
"""Largest call with its arguments, in bytes."""
PROGRESS_INTERVAL = 10.0
"""Seconds between two progress notifications of a pending call, for agents that request them.

The stream has a comment every 15 s besides: node's fetch aborts a response without data after a minute (gemini 0.61.0)."""
REFUSED = {"WWW-Authenticate": "Bearer", "Connection": "close"}
"""Headers for a client without a token. Its connection is closed: those of agents may be idle for long."""
ALLOWED_HOSTS = ["127.0.0.1:*", "localhost:*", "[::1]:*"]


class McpApp:
    """The ASGI application. The bearer token of a request selects its endpoint; without a valid token the answer is 401."""

    def __init__(self, endpoints: Endpoints, clock: Clock) -> None:
        self._endpoints, self._clock = endpoints, clock
        self._servers: WeakKeyDictionary[Endpoint, McpServer] = WeakKeyDictionary()
        # The package logs each session at the level INFO.
        logging.getLogger("mcp").setLevel(logging.WARNING)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        with request_arrived():
            body = RequestBody(scope, receive, send, MAX_CALL_BYTES, "a tool call", self._clock)
            await self._handle(scope, body.receive, body.send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        endpoint = self._endpoints.find(token.strip()) if scheme.lower() == "bearer" else None
        if endpoint is None:
            text = "the token is unknown, or its session has ended; only an agent that the gateway has started has one"
            return await _refuse(401, text, REFUSED)(scope, receive, send)
        if scope["path"].rstrip("/") != PATH:
            return await _refuse(404, f"unknown path; the server's only path is {PATH}")(scope, receive, send)
        server = self._servers.get(endpoint)
        if server is None:
            server = self._servers[endpoint] = McpServer(endpoint, self._clock)
        try:
            await server.handle(scope, receive, send)
        except HTTPException as error:
            await _refuse(error.status_code, error.detail, error.headers)(scope, receive, send)

    async def close(self) -> None:
        """Wait until all servers have ended. Their endpoints must be closed."""
        for server in list(self._servers.values()):
            await server.wait()


class McpServer:
    """The MCP server of one endpoint. It ends, with all its connections, when the endpoint is closed."""

    def __init__(self, endpoint: Endpoint, clock: Clock) -> None:
        self._endpoint, self._clock = endpoint, clock
        server: Server[Any] = Server(NAME, version=__version__, on_list_tools=self._list, on_call_tool=self._call)
        self._manager = StreamableHTTPSessionManager(
            server,
            # Refuses web pages, also after DNS rebinding.
            security_settings=TransportSecuritySettings(allowed_hosts=ALLOWED_HOSTS, allowed_origins=[]),
            max_request_body_size=MAX_CALL_BYTES,
            # No timeout: an agent does not reconnect, and the gateway limits how long agents stay idle.
            session_idle_timeout=None,
        )
        self._ready = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="mcp server")

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request."""
        await self._ready.wait()
        await self._manager.handle_request(scope, receive, send)

    async def wait(self) -> None:
        """Wait until the server has ended."""
        await asyncio.wait([self._task])

    async def _run(self) -> None:
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
        progress = 0
        try:
            while not (await self._clock.wait([call], PROGRESS_INTERVAL))[0]:
                progress += 1
                await context.session.report_progress(progress, message="waiting for the application")
            return _result(call.result())
        finally:
            call.cancel()


def _tool(tool: ToolSpec) -> Tool:
    # Declared read-only, because some agents run other calls only one after the other. The application decides what a call does.
    annotations = ToolAnnotations(read_only_hint=True)
    schema = {"type": "object", **tool.input_schema}
    return Tool(name=tool.name, title=tool.title, description=tool.description, input_schema=schema, annotations=annotations)


def _result(answer: ToolResponse) -> CallToolResult:
    return CallToolResult(content=_content(answer.content), is_error=answer.is_error)


def _content(content: Content) -> list[Any]:
    converted: list[Any] = []
    for block in blocks(content):
        if isinstance(block, TextBlock):
            converted.append(TextContent(type="text", text=block.text))
        elif isinstance(block, ImageBlock) and (data := parse_data_uri(block.url)):
            converted.append(ImageContent(type="image", mime_type=data[0], data=data[1]))
        elif isinstance(block, ImageBlock):
            # MCP has no images by URL.
            converted.append(TextContent(type="text", text=f"[image: {block.url}]"))
    return converted


def _refuse(status: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)
