"""Opens endpoints for agent processes. The first one starts a server on a free port of 127.0.0.1, not the gateway's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from drivers.contract.driver_info import ToolSpec
from drivers.contract.tool_server import ToolServer
from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.application_tools.agent_endpoints import Endpoint, Endpoints
from gateway.security.redaction import Redactor

if TYPE_CHECKING:
    from gateway.application_tools.listener import Listener
    from gateway.application_tools.server import McpApp


class McpHost:
    """The MCP server of the gateway. Call `open` for each agent process that gets tools over MCP, and `close` with the daemon.

    `max_connections` is how many connections of agents it has at most: every process on the machine can connect to its port.
    """

    def __init__(self, redactor: Redactor, max_connections: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._redactor, self._max_connections, self._clock = redactor, max_connections, clock
        self._endpoints = Endpoints()
        self._starting = asyncio.Lock()
        self._listener: Listener | None = None

    async def open(self, tools: Sequence[ToolSpec], call_id_keys: Sequence[str] = ()) -> ToolServer:
        """Return a new endpoint with these tools. Its token is redacted from logs until it is closed.

        `call_id_keys` are the keys of a request's `_meta` that may have the agent's own id of the call.
        """
        async with self._starting:
            if self._listener is None:
                listener, app = await asyncio.to_thread(_import_server)
                self._listener = await listener.start(app(self._endpoints, self._clock), self._max_connections)
        endpoint = Endpoint(f"{self._listener.url}/mcp", tools, self._redactor.forget, call_id_keys)
        self._redactor.register([endpoint.token])
        self._endpoints.add(endpoint)
        return endpoint

    async def close(self) -> None:
        """Close every endpoint and the server."""
        await self._endpoints.close()
        if self._listener is not None:
            await self._listener.stop()


def _import_server() -> tuple[type[Listener], type[McpApp]]:
    # The package mcp: 0.4 s and 24 MB, for agents with tools of applications only. It is called in a thread.
    from gateway.application_tools import listener, server

    return listener.Listener, server.McpApp
