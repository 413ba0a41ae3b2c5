"""The agents' processes that are offered tools by MCP: a token for each, its tools, and its calls; no HTTP here."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from drivers.contract.info import ToolSpec
from drivers.contract.tool_server import ToolRequest, ToolResponse, ToolServer

OVER = "The session has ended; the call was not made."


class Endpoint(ToolServer):
    """One process's tools. Until `close`, whoever has the token may list and call them."""

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
        self._withdrawn: Callable[[str], None] = lambda _: None
        self._open: dict[str, asyncio.Future[ToolResponse]] = {}

    def listen(self, called: Callable[[ToolRequest], None], withdrawn: Callable[[str], None]) -> None:
        self._called, self._withdrawn = called, withdrawn

    async def call(self, name: str, given: Mapping[str, Any], call_id: str | None = None) -> ToolResponse:
        """Call a tool: what the application says, whenever it does. Cancelled, the call is withdrawn."""
        request_id = f"call_{uuid.uuid4().hex}"
        if name not in {tool.name for tool in self.tools}:
            offered = ", ".join(tool.name for tool in self.tools)
            return ToolResponse(request_id, f"There is no tool {name!r} here; there are {offered}.", is_error=True)
        if self._called is None or self.closed.is_set():
            return ToolResponse(request_id, OVER, is_error=True)
        answer: asyncio.Future[ToolResponse] = asyncio.get_running_loop().create_future()
        self._open[request_id] = answer
        self._called(ToolRequest(request_id, name, given, call_id))
        try:
            return await answer
        except asyncio.CancelledError:
            if not self.closed.is_set():
                self._withdrawn(request_id)
            raise
        finally:
            self._open.pop(request_id, None)

    def answer(self, answer: ToolResponse) -> None:
        waiting = self._open.get(answer.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def close(self) -> None:
        self.closed.set()
        self._forget([self.token])
        for request_id, waiting in list(self._open.items()):
            if not waiting.done():
                waiting.set_result(ToolResponse(request_id, OVER, is_error=True))


class Endpoints:
    """All endpoints, found by their tokens. Tokens are kept hashed: to look one up tells nothing of others by its time."""

    def __init__(self) -> None:
        self._open: dict[bytes, Endpoint] = {}

    def add(self, endpoint: Endpoint) -> None:
        # Closed ones go when others come; until then `find` passes them over.
        self._open = {key: known for key, known in self._open.items() if not known.closed.is_set()}
        self._open[_key(endpoint.token)] = endpoint

    def find(self, token: str) -> Endpoint | None:
        """The endpoint of a token; None if there is none, or not any more."""
        found = self._open.get(_key(token))
        return None if found is None or found.closed.is_set() else found

    async def close(self) -> None:
        """Close all."""
        for endpoint in self._open.values():
            await endpoint.close()
        self._open.clear()


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
