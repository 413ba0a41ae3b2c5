"""The contract of a codec: it translates the language of one CLI both ways and does no I/O of its own.

`Codec` is what every codec implements. What only some CLIs need are capabilities in drivers/contract/capabilities.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from drivers.contract.agent import Prompt, Reply
from drivers.contract.errors import DriverError
from drivers.contract.events import Error, OutputEvent, SessionEnd, Stderr


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start."""

    argv: tuple[str, ...]
    """The program and its arguments, which every user of the machine can read."""
    cwd: Path
    """A real path: the process is not started if a part of it is a symbolic link."""
    env: Mapping[str, str]
    """The whole environment."""
    stdin: bytes | None = None
    """Written and closed. None leaves standard input open, for what the codec writes."""
    files: Mapping[Path, bytes] = field(default_factory=dict)
    """Files that are written first, with mode 0600. Missing folders are created."""
    state: Path | None = None
    """A folder in which the CLI can create links: `files` in it are not written where a link leads out of it."""


Phase = Literal["starting", "ready", "running", "waiting"]
"""Before the CLI takes a prompt; between runs; in a run; in a run that waits for the client's replies."""
IN_RUN: tuple[Phase, ...] = ("running", "waiting")
"""The phases of a run."""


class Codec(ABC):
    """One native conversation. A codec never awaits and reads no file and no clock, so a recorded transcript can test it.

    Events leave a codec in two ways: `receive` and `exited` return those that the CLI's output causes; events that another call
    causes are appended to `pending`.

    Attributes:
        title: The CLI's name in error messages.
        phase: Where the conversation is.
        native_id: The id by which the CLI resumes the session; None while it is not known.
        resumable: Whether the CLI can resume the session by that id.
        outbox: Bytes for the CLI's standard input. The runtime writes and clears it after each call.
        pending: Events that no line of output caused. The runtime takes them after each call.
        start_error: Why the CLI does not open the session. The runtime ends the process then and raises it.
        protocol_error: Why the CLI's output cannot be followed any further, such as a malformed end of the run. The runtime ends
            the process then; the start, or the run under way, fails with this text.
        run_result: The end of a one-task run, if it is known before the process has exited.
    """

    title = "the agent"

    def __init__(self) -> None:
        # Capabilities are further base classes, with attributes of their own.
        super().__init__()
        self.phase: Phase = "starting"
        self.native_id: str | None = None
        self.resumable = True
        self.outbox = bytearray()
        self.pending: list[OutputEvent] = []
        self.start_error: DriverError | None = None
        self.protocol_error: str | None = None
        self.run_result: SessionEnd | None = None

    @abstractmethod
    def receive(self, line: bytes) -> list[OutputEvent]:
        """The events of one line of output, given without its newline. Unknown lines become `stdout`; nothing raises."""

    def receive_lines(self, lines: Sequence[bytes]) -> list[OutputEvent]:
        """The events of the lines that were read at once, until one sets `protocol_error`: what `receive` returns for each."""
        events: list[OutputEvent] = []
        for line in lines:
            events += self.receive(line)
            if self.protocol_error is not None:
                break
        return events

    def prompt(self, prompt: Prompt) -> None:
        """Start a run. Called in the phase `ready` only."""
        raise NotImplementedError(f"{type(self).__name__} runs one task only")

    def reply(self, reply: Reply) -> None:
        """Answer a call of the last `awaiting`."""
        raise NotImplementedError(f"{type(self).__name__} never waits for the client")

    def interrupt(self) -> bool:
        """Ask the CLI to stop the run. False if it has no such request: the process is ended then."""
        return False

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        """The events that are left when the process has ended; `session_end` is the last if a run was under way.

        Parameters:
            stderr: The last lines of standard error. They become events after a failure only.
        """
        if self.phase not in IN_RUN:
            return []
        self.phase = "ready"
        events: list[OutputEvent] = [Stderr(line=line) for line in stderr] if exit_code else []
        if self.run_result is not None:
            return [*events, self.run_result.model_copy(update={"exit_code": exit_code or self.run_result.exit_code})]
        message = self.protocol_error or f"{self.title} ended in the middle of the run, with exit code {exit_code}"
        return [*events, Error(message=message), SessionEnd(exit_code=exit_code or 1, stop_reason="error")]


@dataclass(frozen=True, slots=True)
class Launch:
    """A process and its codec."""

    command: Command
    """The process to start."""
    codec: Codec
    """A fresh codec, which reads its output."""
    additional_directories: tuple[Path, ...] = ()
    """Folders besides the working folder in which requests of the CLI to its client are handled."""
