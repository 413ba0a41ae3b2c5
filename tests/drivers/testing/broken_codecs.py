"""Codecs with one fault each, derived from that of the echo driver."""

from __future__ import annotations

from collections.abc import Sequence

from drivers.codecs.output_event_lines import EventLineCodec
from drivers.contract.events import AgentToken, Error, OutputEvent, SessionEnd, Stdout, ToolResult


class ChangesEvents(EventLineCodec):
    """Passes the events of each line through `change`."""

    def change(self, events: list[OutputEvent]) -> list[OutputEvent]:
        return events

    def receive(self, line: bytes) -> list[OutputEvent]:
        return self.change(super().receive(line))

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        return self.change(super().exited(exit_code, stderr))


class EndsTwice(ChangesEvents):
    def change(self, events: list[OutputEvent]) -> list[OutputEvent]:
        return [twin for event in events for twin in ([event, event] if isinstance(event, SessionEnd) else [event])]


class NeverEnds(ChangesEvents):
    def change(self, events: list[OutputEvent]) -> list[OutputEvent]:
        return [event for event in events if not isinstance(event, SessionEnd)]


class GoesOnAfterItsEnd(ChangesEvents):
    def change(self, events: list[OutputEvent]) -> list[OutputEvent]:
        return [*events, AgentToken(text="late")] if any(isinstance(event, SessionEnd) for event in events) else events


class SilentlyFails(ChangesEvents):
    def change(self, events: list[OutputEvent]) -> list[OutputEvent]:
        failing = SessionEnd(exit_code=1, stop_reason="error")
        return [failing if isinstance(event, SessionEnd) else event for event in events if not isinstance(event, Error)]


class FindsResults(ChangesEvents):
    """Reports results of calls that were never made."""

    def change(self, events: list[OutputEvent]) -> list[OutputEvent]:
        return [*(ToolResult(tool_call_id="1", output="x") for event in events if isinstance(event, AgentToken)), *events]


class Texts(ChangesEvents):
    """Gives texts instead of events."""

    def change(self, events: list[OutputEvent]) -> list[OutputEvent]:
        return ["text" if isinstance(event, AgentToken) else event for event in events]  # type: ignore[misc]


class Loses(ChangesEvents):
    """Drops unknown lines."""

    def change(self, events: list[OutputEvent]) -> list[OutputEvent]:
        return [event for event in events if not isinstance(event, Stdout)]


class AssumesValidLines(EventLineCodec):
    """Raises an error for a line that is no event."""

    def receive(self, line: bytes) -> list[OutputEvent]:
        if not line.startswith(b'{"kind"') or not line.endswith(b"}"):
            raise ValueError(f"unknown line: {line!r}")
        return super().receive(line)


class EndsOnAnySessionEnd(EventLineCodec):
    """Ends the run at every line that contains `session_end`."""

    def receive(self, line: bytes) -> list[OutputEvent]:
        events = super().receive(line)
        return [SessionEnd(exit_code=0)] if b"session_end" in line else events


class BeginsOnLateOutput(EventLineCodec):
    """Takes output for the beginning of a run."""

    def receive(self, line: bytes) -> list[OutputEvent]:
        if b"agent_token" in line and self.phase == "ready":
            self.phase = "running"
        return super().receive(line)


class ReportsSuccessOnExit(EventLineCodec):
    """Reports success when its process exits."""

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        if self.phase != "running":
            return []
        self.phase = "ready"
        return [SessionEnd(exit_code=0)]


class LeavesOpen(EventLineCodec):
    """Reports no end when its process dies."""

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        return [] if exit_code else super().exited(exit_code, stderr)


class Repeats(EventLineCodec):
    """Reports the end of a run whenever its process exits."""

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        return [Error(message="it ended"), SessionEnd(exit_code=exit_code or 1, stop_reason="error")]
