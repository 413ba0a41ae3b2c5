"""A scenario, as drivers/script/schema.py has checked it: which of its turns answers a prompt."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Fields = dict[str, Any]
    Step = dict[str, Fields]
    """One key, its name, and its fields."""


class Turn:
    """One answer to a prompt."""

    def __init__(self, when: str | None, steps: list[Step]) -> None:
        self.when, self.steps = re.compile(when) if when else None, steps


class Scenario:
    """The turns, and what is before them. `checked` is the scenario, without bare values in place of objects."""

    def __init__(self, checked: dict[str, Any]) -> None:
        self.turns = [Turn(turn.get("when"), turn["steps"]) for turn in checked["turns"]]
        self.start: list[Step] = checked.get("start", [])
        self.model: str = checked.get("model", "script")

    def turn_for(self, texts: list[str]) -> Turn | None:
        """The turn that answers the last of these user texts; None if there is none for it."""
        matching = self._matching(texts[-1])
        if matching:
            return matching
        in_order = [turn for turn in self.turns if turn.when is None]
        before = sum(1 for text in texts[:-1] if self._matching(text) is None)
        return in_order[min(before, len(in_order) - 1)] if in_order else None

    def _matching(self, text: str) -> Turn | None:
        return next((turn for turn in self.turns if turn.when and turn.when.search(text)), None)
