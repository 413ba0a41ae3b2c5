"""A codec of a CLI that runs one task: its run begins and ends with the process. No I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from drivers.codecs.json_lines import Events, JsonLineCodec
from drivers.codecs.tool_calls import CallTracker
from drivers.contract.events import OutputEvent, SessionEnd


class TaskCodec(JsonLineCodec, ABC):
    """Reads the CLI's own lines by `handlers`, and the line that the OutputEvent page shows for it.

    The CLI's own lines have a last one with the result. With the others a task is complete if the process exits with code 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.phase = "running"
        self.calls = CallTracker()
        self._is_plain = False

    @abstractmethod
    def plain(self, message: dict[str, Any]) -> Events:
        """The events of a line of the OutputEvent page; None for another one."""

    def dispatch(self, message: dict[str, Any]) -> Events:
        if str(message.get("type")) in self.handlers:
            return super().dispatch(message)
        events = self.plain(message)
        self._is_plain = self._is_plain or events is not None
        return events

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        if self._is_plain and self.run_result is None and not exit_code:
            self.run_result = SessionEnd(exit_code=0)
        left = self.calls.fail_all()
        return [*left, *super().exited(exit_code, stderr)]
