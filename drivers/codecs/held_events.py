"""Events that come while the client is asked. Its turn has ended with `awaiting`, so they belong to the turn after its reply."""

from __future__ import annotations

from drivers.contract.events import OutputEvent


class HeldEvents:
    """The events that a codec holds back while its phase is `waiting`.

    Attributes:
        events: The events that are held back.
    """

    def __init__(self) -> None:
        self.events: list[OutputEvent] = []

    def pass_on(self, events: list[OutputEvent], *, waiting: bool) -> list[OutputEvent]:
        """Hold the events back while the client is asked; else return them after those that were held back."""
        if waiting:
            self.events += events
            return []
        return [*self.release(), *events] if self.events else events

    def release(self) -> list[OutputEvent]:
        """Return the events that were held back."""
        events, self.events = self.events, []
        return events
