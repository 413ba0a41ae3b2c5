"""Removes repetitions of events about a session, which CLIs report at any time and as often as they like."""

from __future__ import annotations

from typing import TypeVar

from drivers.contract.events import Event

E = TypeVar("E", bound=Event)


class Deduplicator:
    """Keeps the last event of each kind."""

    def __init__(self) -> None:
        self._last: dict[type[Event], Event] = {}

    def changed(self, event: E) -> list[E]:
        """The event in a list; an empty list if it equals the last event of its kind."""
        if self._last.get(type(event)) == event:
            return []
        self._last[type(event)] = event
        return [event]
