"""A codec whose CLI asks its client: it finds out when the CLI waits, and asks about all calls at once. No I/O and no clock."""

from __future__ import annotations

from abc import ABC, abstractmethod

from drivers.codecs.json_lines import JsonLineCodec
from drivers.contract.capabilities import SupportsDebounce
from drivers.contract.events import Awaiting, OutputEvent


class AskingCodec(JsonLineCodec, SupportsDebounce, ABC):
    """A CLI requests permissions and results one by one, beside calls that need no client. Each `awaiting` names all of them.

    The client is asked when the CLI has been silent for as long as `silence` returns, or after `max_held_seconds`. Events that
    come while the client is asked belong to the turn after its reply: they are held back until all calls are answered.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: list[OutputEvent] = []
        self._unanswered: set[str] = set()

    @abstractmethod
    def silence(self) -> float | None:
        """Seconds of silence after which the CLI waits for the client: 0 if it certainly does, None if it needs nothing of it."""

    @abstractmethod
    def question(self) -> list[OutputEvent]:
        """The events that are due after the silence. They end with `awaiting` if the client is to be asked."""

    def debounce_seconds(self) -> float | None:
        return self.silence() if self.phase == "running" else None

    def debounced_events(self) -> list[OutputEvent]:
        return [] if self.debounce_seconds() is None else [*self.release(), *self._ask_client()]

    def deliver(self, events: list[OutputEvent]) -> list[OutputEvent]:
        if self.phase == "waiting":
            self._held += events
            return []
        if self._held:
            events = [*self.release(), *events]
        return [*events, *self._ask_client()] if self.debounce_seconds() == 0 else events

    def release(self) -> list[OutputEvent]:
        """Return the events that were held back."""
        events, self._held = self._held, []
        return events

    def answered(self, call_id: str, events: list[OutputEvent]) -> None:
        """The client has answered a call, which has caused `events`. After its last answer the run goes on."""
        self._unanswered.discard(call_id)
        if self.phase == "waiting" and not self._unanswered:
            self.phase = "running"
        self.pending += self.deliver(events)

    def stop_asking(self) -> None:
        """The run is interrupted: the client is asked no more."""
        self._unanswered.clear()
        if self.phase == "waiting":
            self.phase = "running"

    def _ask_client(self) -> list[OutputEvent]:
        events = self.question()
        if events and isinstance(asked := events[-1], Awaiting):
            self._unanswered = {call.id for call in asked.calls if not call.optional}
            self.phase = "waiting"
        return events
