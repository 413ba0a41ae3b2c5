"""What a CLI tells of its session, whenever and however often it does."""

from __future__ import annotations

from typing import TypeVar

from drivers.contract.events import Event

E = TypeVar("E", bound=Event)


class Deduplicator:
    """The last event of each kind: the same is not told twice."""

    def __init__(self) -> None:
        self._last: dict[type[Event], Event] = {}

    def changed(self, event: E) -> list[E]:
        """The event, unless it was the last of its kind."""
        if self._last.get(type(event)) == event:
            return []
        self._last[type(event)] = event
        return [event]
