"""The HTTP server of the endpoints for agent processes, on a free port of 127.0.0.1, not the gateway's.

`gateway/application_tools/host.py` imports it for the first endpoint.
"""

from __future__ import annotations

import asyncio
import socket
from contextvars import Context

from gateway.application_tools.server import McpApp
from gateway.http.server import Server, server_config


class Listener(Server):
    """A uvicorn server in the daemon's event loop."""

    def __init__(self, app: McpApp, listening: socket.socket, max_connections: int) -> None:
        # The keep-alive time is long, because a client may send its next request while an idle connection is closed.
        super().__init__(
            server_config(
                app,
                max_connections,
                ws="none",
                lifespan="off",
                timeout_keep_alive=24 * 3600,
                timeout_graceful_shutdown=1,
                proxy_headers=False,
            )
        )
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
