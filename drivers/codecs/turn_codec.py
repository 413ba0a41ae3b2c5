"""The base of a codec for a CLI that runs one process a turn (drivers/runtime/turn_process.py)."""

from __future__ import annotations

from collections.abc import Sequence

from drivers.codecs.tool_calls import CallTracker
from drivers.contract.codec import Codec
from drivers.contract.events import OutputEvent, SessionEnd


class TurnCodec(Codec):
    """The output of one turn's process. The run is under way from the start and ends when the process exits.

    `receive` sets `native_id` once the CLI has opened the session, and `run_result` where the CLI reports how the turn went. An
    exit code of 0 without a `run_result` is a success, any other one is a crash. Calls that still run in `calls` fail then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.phase = "running"
        self.calls = CallTracker()

    def exited(self, exit_code: int, stderr: Sequence[str]) -> list[OutputEvent]:
        if exit_code == 0 and self.run_result is None:
            self.run_result = SessionEnd(exit_code=0)
        return [*self.calls.fail_all(), *super().exited(exit_code, stderr)]
