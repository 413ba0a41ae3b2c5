"""Endpoints of agent processes that get tools over MCP: the token, the tools and the pending calls of each. Does no HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from drivers.contract.driver_info import ToolSpec
from drivers.contract.tool_server import ToolRequest, ToolResponse, ToolServer

SESSION_ENDED = "The session has ended; the call was not made."


class Endpoint(ToolServer):
    """The tools of one process. Until `close`, the token gives access to them.

    `url` is the address of the MCP server, `forget` is called with the token when the endpoint is closed.
    """

    def __init__(
        self,
        url: str,
        tools: Sequence[ToolSpec],
        forget: Callable[[Iterable[str]], None] = lambda _: None,
        call_id_keys: Sequence[str] = (),
    ) -> None:
        self.url, self.token = url, secrets.token_urlsafe(32)
        self.tools = tuple(tools)
        self.call_id_keys = tuple(call_id_keys)
        self.closed = asyncio.Event()
        self._forget = forget
        self._called: Callable[[ToolRequest], None] | None = None
        self._cancelled: Callable[[str], None] = lambda _: None
        self._pending: dict[str, asyncio.Future[ToolResponse]] = {}

    def listen(self, called: Callable[[ToolRequest], None], cancelled: Callable[[str], None]) -> None:
        self._called, self._cancelled = called, cancelled

    async def call(self, name: str, arguments: Mapping[str, Any], call_id: str | None = None) -> ToolResponse:
        """Call a tool, and return the application's answer. There is no time limit.

        `call_id` is the agent's own id of the call, if it has sent one. If the caller is cancelled, so is the call.
        An unknown tool, or a closed endpoint, is an answer with an error.
        """
        request_id = f"call_{uuid.uuid4().hex}"
        if name not in {tool.name for tool in self.tools}:
            known = ", ".join(tool.name for tool in self.tools)
            return ToolResponse(request_id, f"Unknown tool {name!r}; known are {known}.", is_error=True)
        if self._called is None or self.closed.is_set():
            return ToolResponse(request_id, SESSION_ENDED, is_error=True)
        answer: asyncio.Future[ToolResponse] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = answer
        self._called(ToolRequest(request_id, name, arguments, call_id))
        try:
            return await answer
        except asyncio.CancelledError:
            if not self.closed.is_set():
                self._cancelled(request_id)
            raise
        finally:
            self._pending.pop(request_id, None)

    def answer(self, answer: ToolResponse) -> None:
        pending = self._pending.get(answer.id)
        if pending is not None and not pending.done():
            pending.set_result(answer)

    async def close(self) -> None:
        self.closed.set()
        self._forget([self.token])
        for request_id, pending in list(self._pending.items()):
            if not pending.done():
                pending.set_result(ToolResponse(request_id, SESSION_ENDED, is_error=True))


class Endpoints:
    """All endpoints by token. The tokens are stored as hashes, so that the time of a lookup reveals nothing about them."""

    def __init__(self) -> None:
        self._open: dict[bytes, Endpoint] = {}

    def add(self, endpoint: Endpoint) -> None:
        """Add an endpoint."""
        # Closed endpoints are removed here; until then `find` ignores them.
        self._open = {key: known for key, known in self._open.items() if not known.closed.is_set()}
        self._open[_key(endpoint.token)] = endpoint

    def find(self, token: str) -> Endpoint | None:
        """Return the endpoint of a token, or None if the token is unknown or its endpoint is closed."""
        endpoint = self._open.get(_key(token))
        return None if endpoint is None or endpoint.closed.is_set() else endpoint

    async def close(self) -> None:
        """Close all endpoints."""
        for endpoint in self._open.values():
            await endpoint.close()
        self._open.clear()


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
