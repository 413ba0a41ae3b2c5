"""The interface of the MCP server by which one agent process calls application-side tools. The gateway implements it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drivers.contract.driver_info import ToolSpec
from drivers.contract.messages import Content


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call of an application-side tool by MCP."""

    id: str
    """The id of the MCP request."""
    name: str
    """The name of the tool."""
    input: Mapping[str, Any]
    """Its input."""
    call_id: str | None = None
    """The CLI's own id of the call, if the request has it (`Mcp.call_id_keys`)."""


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """The response to a ToolRequest."""

    id: str
    """The id of the request."""
    content: Content
    """The result, for the model."""
    is_error: bool = False
    """The call has failed."""


class ToolServer(ABC):
    """An MCP server on loopback with the application-side tools of one agent process. A client authenticates by the token."""

    url: str
    token: str

    @abstractmethod
    def listen(self, on_request: Callable[[ToolRequest], None], on_cancel: Callable[[str], None]) -> None:
        """Set the callbacks for calls, and for the ids of calls that the agent has cancelled."""

    @abstractmethod
    def answer(self, answer: ToolResponse) -> None:
        """Answer a call. The answer to a cancelled call is ignored."""

    @abstractmethod
    async def close(self) -> None:
        """Accept no more calls; the token becomes invalid. Idempotent."""


ToolHost = Callable[[Sequence[ToolSpec], Sequence[str]], Awaitable[ToolServer]]
"""Opens a ToolServer for these tools; the second argument is `Mcp.call_id_keys`."""
