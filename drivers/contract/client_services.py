"""Requests of a CLI to its client, for text files and terminals. The methods are those of the Agent Client Protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

READ, WRITE = "fs/read_text_file", "fs/write_text_file"
CREATE, WAIT = "terminal/create", "terminal/wait_for_exit"
TERMINAL_METHODS = frozenset({CREATE, WAIT, "terminal/output", "terminal/kill", "terminal/release"})
CHECK_PATHS = "portico/check_paths"
"""A request of a codec itself, which the runtime handles: the response is an error unless all `paths` (a list of strings, each
absolute or relative to the working folder) lead into the session's folders at this moment."""
INVALID_PARAMS, INTERNAL_ERROR, RESOURCE_NOT_FOUND, METHOD_NOT_FOUND, REQUEST_CANCELLED = -32602, -32603, -32002, -32601, -32800


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request of the CLI to its client. The session's client handles it if it supports the method. Else the runtime does on
    this machine."""

    id: int | str
    """The CLI's id of the request."""
    method: str
    """One of the constants above."""
    params: Mapping[str, Any]
    """The parameters of the method, as in the Agent Client Protocol."""
    client_only: bool = False
    """The runtime does not handle it: without a client that supports the method, it is an error."""


@dataclass(frozen=True, slots=True)
class ClientResponse:
    """The response to a ClientRequest: its result, or an error."""

    result: Mapping[str, Any] = field(default_factory=dict)
    """The result of the method."""
    error: str | None = None
    """The text of the error; None for a result."""
    code: int = 0
    """The code of the error, of JSON-RPC."""


class ClientServices(ABC):
    """The requests that a session's client handles itself: an editor has text that is not saved yet, and displays the terminal in
    which a command runs."""

    @abstractmethod
    def supported_methods(self) -> frozenset[str]:
        """The methods that the client handles at this moment."""

    @abstractmethod
    def supports(self, request: ClientRequest) -> bool:
        """Whether the client handles this request at this moment. A terminal's requests go to the client that runs it."""

    @abstractmethod
    async def serve(self, request: ClientRequest) -> ClientResponse:
        """Send the request to the client. Errors are responses too. If this is cancelled, so is the client's request, and a
        terminal that the client creates nevertheless is released."""

    @abstractmethod
    def release_terminals(self) -> None:
        """The agent has ended: release the terminals that it has left."""
