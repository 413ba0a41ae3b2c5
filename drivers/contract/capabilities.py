"""Optional capabilities of a codec: base classes to inherit beside `Codec`, which the runtime finds by `isinstance`.

class ExampleCodec(Codec, SupportsSteering): ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from drivers.contract.agent import Prompt
from drivers.contract.client_services import ClientRequest, ClientResponse
from drivers.contract.events import OutputEvent
from drivers.contract.tool_server import ToolRequest, ToolResponse


class SupportsSteering(ABC):
    """The CLI takes messages while it works. `DriverInfo.steers` is True then."""

    @abstractmethod
    def steer(self, prompt: Prompt) -> bool:
        """Send a message to the running agent; the run ends only when that is answered too. False if the CLI takes none now."""


class SupportsDebounce(ABC):
    """The codec holds events back until the CLI has been silent, such as one `awaiting` for calls that come one by one.

    Attributes:
        max_held_seconds: Seconds after which the events are due although the CLI is not silent; None for no such limit.
    """

    max_held_seconds: ClassVar[float | None] = None

    @abstractmethod
    def debounce_seconds(self) -> float | None:
        """Seconds of silence after which `debounced_events` is due; None while nothing is held back."""

    @abstractmethod
    def debounced_events(self) -> list[OutputEvent]:
        """The events that were held back."""


class SupportsClientRequests(ABC):
    """The CLI makes requests to its client, for files and terminals (`fs/*` and `terminal/*` of the Agent Client Protocol).

    Attributes:
        client_requests: Requests to handle. The runtime takes them after each call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.client_requests: list[ClientRequest] = []

    @abstractmethod
    def client_responded(self, request: ClientRequest, response: ClientResponse) -> None:
        """Pass on the response to one of `client_requests`."""


class SupportsMcpTools(ABC):
    """The CLI calls application-side tools by MCP, at the server of its launch.

    Attributes:
        tool_responses: Responses to tool requests. The runtime takes them after each call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tool_responses: list[ToolResponse] = []

    @abstractmethod
    def tool_requested(self, request: ToolRequest) -> None:
        """The CLI has called a tool and waits for the response."""

    @abstractmethod
    def tool_cancelled(self, request_id: str) -> None:
        """The CLI has cancelled a call: its response is not needed any more."""


class SupportsModes(ABC):
    """The mode of an open session can be changed."""

    @abstractmethod
    def set_mode(self, mode: str) -> bool:
        """Change the mode, also during a run. False if that needs a new process.

        A CLI that refuses it later reports the mode that it is in by a `mode` event.
        """


class SupportsClosing(ABC):
    """The CLI takes a message before its session is ended."""

    @abstractmethod
    def closing(self) -> None:
        """The session is about to be ended: write what the CLI receives before its input ends to `outbox`."""
