"""The contract of a codec: one CLI's language, translated both ways, without any input or output of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from drivers.contract.agent import Prompt, Reply
from drivers.contract.client_services import ClientRequest, ClientResponse
from drivers.contract.errors import DriverError
from drivers.contract.events import Error, OutputEvent, SessionEnd, Stderr
from drivers.contract.tool_server import ToolRequest, ToolResponse, ToolServer


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start. `files` are written first (mode 0600); `stdin` is written and closed, None leaves it open."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    stdin: bytes | None = None
    files: Mapping[Path, bytes] = field(default_factory=dict)


Phase = Literal["starting", "ready", "running", "waiting"]


class Codec(ABC):
    """One native conversation, translated both ways; sans-I/O: it never awaits, nor touches a file or a clock.

    `phase` tells where the conversation is. `receive` takes one output line (without its newline); what is to be written
    is collected in `outbox`, events that no line brought (after a `reply`) in `pending`, and what the CLI asks of its
    client in `client_requests`: each is done, and its answer given to `answered`. Application-side calls that the CLI makes by
    MCP are given to `called`, and their answers collected in `tool_responses`. `refusal` is why the CLI would not open the
    session, where the codec can tell. `ending` is the end of a one-task run, if it is known before the process has exited.
    """

    title = "the agent"

    def __init__(self) -> None:
        self.phase: Phase = "starting"
        self.native_id: str | None = None
        self.outbox = bytearray()
        self.pending: list[OutputEvent] = []
        self.client_requests: list[ClientRequest] = []
        self.tool_responses: list[ToolResponse] = []
        self.start_error: DriverError | None = None
        self.run_result: SessionEnd | None = None

    @abstractmethod
    def receive(self, line: bytes) -> list[OutputEvent]:
        """The events of one line; unknown lines become `stdout`, nothing raises."""

    def debounce_seconds(self) -> float | None:
        """Seconds of silence after which `settle` is due; None while nothing is held back."""
        return None

    def debounced_events(self) -> list[OutputEvent]:
        """What was held back until the CLI fell silent, such as an `awaiting` that is to name all the calls that wait."""
        return []

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        """The events that are left when the process has ended; with a run under way, `session_end` is the last.

        `stderr` are the last lines of its standard error, shown only after a failure.
        """
        if self.phase not in ("running", "waiting"):
            return []
        self.phase = "ready"
        events: list[OutputEvent] = [Stderr(line=line) for line in stderr] if exit_code else []
        if self.run_result is not None:
            return [*events, self.run_result.model_copy(update={"exit_code": exit_code or self.run_result.exit_code})]
        message = f"{self.title} ended in the middle of the run, with exit code {exit_code}"
        return [*events, Error(message=message), SessionEnd(exit_code=exit_code or 1, stop_reason="error")]

    def prompt(self, prompt: Prompt) -> None:
        """Ask for a run."""
        raise NotImplementedError(f"{type(self).__name__} runs one task only")

    def steer(self, prompt: Prompt) -> bool:
        """Say something to the agent at work; the run ends when that is answered too. False if the CLI cannot be told now."""
        return False

    def reply(self, reply: Reply) -> None:
        """Answer an awaiting call."""
        raise NotImplementedError(f"{type(self).__name__} never waits for the client")

    def client_responded(self, request: ClientRequest, answer: ClientResponse) -> None:
        """Pass on what came of one of `client_requests`."""
        raise NotImplementedError(f"{type(self).__name__} asks nothing of its client")

    def tool_requested(self, request: ToolRequest) -> None:
        """The CLI has called an application-side tool by MCP, and waits for its answer."""
        raise NotImplementedError(f"{type(self).__name__} takes no tools by MCP")

    def tool_cancelled(self, request_id: str) -> None:  # noqa: B027 - there may be nothing to be told
        """It does not wait any more."""

    def closing(self) -> None:  # noqa: B027 - most CLIs are told nothing
        """The session is about to be ended: what the CLI is to be told before its input ends."""

    def interrupt(self) -> bool:
        """Ask the CLI to stop the run. False if it has no such request: then the process is ended."""
        return False


@dataclass(frozen=True, slots=True)
class Launch:
    """A process and the codec that understands it; and the server of its application-side tools, if it takes them by MCP.

    What the CLI asks of this machine is done in its working folder and in `additional_directories`.
    """

    command: Command
    codec: Codec
    tool_server: ToolServer | None = None
    additional_directories: tuple[Path, ...] = ()
