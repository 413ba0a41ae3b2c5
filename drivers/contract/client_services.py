"""Services: what a CLI may ask of its client, text files and terminals. The methods are those of the Agent Client Protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

READ, WRITE = "fs/read_text_file", "fs/write_text_file"
CREATE, WAIT = "terminal/create", "terminal/wait_for_exit"
INVALID_PARAMS, INTERNAL_ERROR, RESOURCE_NOT_FOUND, METHOD_NOT_FOUND, REQUEST_CANCELLED = -32602, -32603, -32002, -32601, -32800


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A service that the CLI asks of its client. The session's client does it where it offers that; the runtime does the rest
    on this machine, unless it is `client_only`."""

    id: int | str
    method: str
    params: Mapping[str, Any]
    client_only: bool = False


@dataclass(frozen=True, slots=True)
class ClientResponse:
    """What came of a ClientRequest: its result, or an error's code (as of JSON-RPC) and text."""

    result: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    code: int = 0


class ClientServices(ABC):
    """What a session's client does itself of what a CLI may ask: an editor reads the text that is not saved yet, and shows
    the terminal in which a command runs."""

    @abstractmethod
    def supported_methods(self) -> frozenset[str]:
        """The methods that the client does, here and now."""

    @abstractmethod
    def supports(self, request: ClientRequest) -> bool:
        """Whether the client does this, here and now; a terminal's requests go to the client that runs it."""

    @abstractmethod
    async def serve(self, request: ClientRequest) -> ClientResponse:
        """Have it done; what goes wrong is an answer too. Cancelled, it tells the client that no answer is needed, and has a
        terminal released that is made all the same."""

    @abstractmethod
    def release_terminals(self) -> None:
        """The agent that asked is gone: the terminals that it has left are released."""
