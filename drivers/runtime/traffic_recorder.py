"""The interface of a recorder of what goes through the pipes of a process, such as a transcript."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TrafficRecorder(Protocol):
    """Receives the traffic of processes. The methods are called on the event loop and must not raise."""

    def started(self, pid: int, argv: Sequence[str]) -> None: ...

    def sent(self, pid: int, data: bytes) -> None:
        """Whole lines for its standard input."""

    def received(self, pid: int, lines: Sequence[bytes]) -> None:
        """Lines of its standard output, without newlines."""

    def ended(self, pid: int, exit_code: int, stderr: Sequence[str]) -> None:
        """It has exited, with these last lines on standard error."""
