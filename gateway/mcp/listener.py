"""Opens endpoints for agent processes. The first one starts a server on a free port of 127.0.0.1, not the gateway's."""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Sequence
from contextvars import Context
from typing import TYPE_CHECKING

import uvicorn

from drivers.contract.driver_info import ToolSpec
from drivers.contract.tool_server import ToolServer
from gateway.connection_limits import HeaderLimitProtocol
from gateway.embedded_server import EmbeddedServer
from gateway.mcp.agent_endpoints import Endpoint, Endpoints
from gateway.security.redaction import Redactor

if TYPE_CHECKING:
    from gateway.mcp.server import McpApp


class McpHost:
    """The MCP server of the gateway. Call `open` for each agent process that gets tools over MCP, and `close` with the daemon.

    `max_connections` is how many connections of agents it has at most: every process on the machine can connect to its port.
    """

    def __init__(self, redactor: Redactor, max_connections: int) -> None:
        self._redactor, self._max_connections = redactor, max_connections
        self._endpoints = Endpoints()
        self._starting = asyncio.Lock()
        self._listener: Listener | None = None

    async def open(self, tools: Sequence[ToolSpec], call_id_keys: Sequence[str] = ()) -> ToolServer:
        """Return a new endpoint with these tools. Its token is redacted from logs until it is closed.

        `call_id_keys` are the keys of a request's `_meta` that may have the agent's own id of the call.
        """
        async with self._starting:
            if self._listener is None:
                module = await asyncio.to_thread(importlib.import_module, "gateway.mcp.server")
                self._listener = await Listener.start(module.McpApp(self._endpoints), self._max_connections)
        endpoint = Endpoint(f"{self._listener.url}/mcp", tools, self._redactor.forget, call_id_keys)
        self._redactor.register([endpoint.token])
        self._endpoints.add(endpoint)
        return endpoint

    async def close(self) -> None:
        """Close every endpoint and the server."""
        await self._endpoints.close()
        if self._listener is not None:
            await self._listener.stop()


class Listener(EmbeddedServer):
    """A uvicorn server in the daemon's event loop."""

    def __init__(self, app: McpApp, listening: socket.socket, max_connections: int) -> None:
        # The keep-alive time is long, because a client may send its next request while an idle connection is closed.
        super().__init__(
            uvicorn.Config(
                app, http=HeaderLimitProtocol, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
                timeout_keep_alive=24 * 3600, timeout_graceful_shutdown=1,
            ),
            max_connections,
        )  # fmt: skip
        self._app, self._socket = app, listening
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        # In a context of its own: it serves all sessions, and the one that starts it is in the context.
        self._work = asyncio.create_task(self.serve(sockets=[listening]), name="mcp listener", context=Context())

    @classmethod
    async def start(cls, app: McpApp, max_connections: int) -> Listener:
        """Start listening. Returns when the server accepts connections."""
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listener = cls(app, listening, max_connections)
        while not listener.started:
            if listener._work.done():
                await listener._work
                raise RuntimeError("the MCP server did not start")
            await asyncio.sleep(0.001)
        return listener

    async def stop(self) -> None:
        """Stop the server. The endpoints must be closed."""
        await self._app.close()
        self.should_exit = self.force_exit = True
        await self._work
        self._socket.close()
