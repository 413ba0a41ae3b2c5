"""The MCP server that offers application-side tools to one agent process: the interface that the gateway implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drivers.contract.info import ToolSpec
from drivers.contract.messages import Content


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call of an application-side tool that an agent makes by MCP. `call_id` is the agent's own id of it, if it says so."""

    id: str
    name: str
    input: Mapping[str, Any]
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """What comes of a ToolRequest, for the model."""

    id: str
    content: Content
    is_error: bool = False


class ToolServer(ABC):
    """An MCP server on loopback that offers one agent's process its application-side tools, to whoever has the token."""

    url: str
    token: str

    @abstractmethod
    def listen(self, called: Callable[[ToolRequest], None], withdrawn: Callable[[str], None]) -> None:
        """Who hears of the calls, and by their ids of those that the agent gave up."""

    @abstractmethod
    def answer(self, answer: ToolResponse) -> None:
        """Answer a call; one that was given up is passed over."""

    @abstractmethod
    async def close(self) -> None:
        """Take no more calls; the token is of no more use. Idempotent."""


ToolHost = Callable[[Sequence[ToolSpec], Sequence[str]], Awaitable[ToolServer]]
"""Opens a ToolServer for these tools; the second argument is `DriverInfo.mcp_call_id_keys`."""
