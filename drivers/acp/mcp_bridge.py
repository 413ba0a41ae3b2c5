"""Forwards MCP over stdio to an MCP server over HTTP, for agents that support stdio servers only.

`python -m drivers.acp.mcp_bridge`, with PORTICO_MCP_URL and PORTICO_MCP_TOKEN in its environment.
"""

from __future__ import annotations

import os
from typing import Any

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.server.stdio import stdio_server


async def bridge(url: str, token: str) -> None:
    """Forward messages until the agent or the server closes its end."""
    # No timeout: the gateway limits how long the application may take. No proxy from the environment: the server is on loopback.
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=None, trust_env=False) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=None) as (from_server, to_server),
        stdio_server() as (from_agent, to_agent),
        anyio.create_task_group() as group,
    ):

        async def forward(source: Any, target: Any) -> None:
            async for message in source:
                if not isinstance(message, Exception):
                    await target.send(message)
            group.cancel_scope.cancel()

        group.start_soon(forward, from_server, to_agent)
        group.start_soon(forward, from_agent, to_server)


if __name__ == "__main__":
    anyio.run(bridge, os.environ["PORTICO_MCP_URL"], os.environ["PORTICO_MCP_TOKEN"])
