"""The events of tool calls: each call starts once and ends once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drivers.contract.events import DeniedResult, FileChange, OutputEvent, ToolCall, ToolOutput, ToolResult

MAX_STREAMED_OUTPUT = 256 * 1024
"""Characters of a call's output that are reported while it runs; its result has all."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as clients see it.

    Attributes:
        id: The CLI's id of the call.
        name: The name of the tool.
        input: Its complete input.
        detail: A short text about the call for people.
        parent_id: The id of the call that started the sub-agent, if a sub-agent makes this one.
        subagent_id: The same of a sub-agent's call that waits for the client, and has no `parent_id`.
    """

    id: str
    name: str
    input: Any = None
    detail: str | None = None
    parent_id: str | None = None
    subagent_id: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not isinstance(self.name, str):
            raise TypeError("the id and the name of a call are strings")

    def denied(self, reason: str) -> list[OutputEvent]:
        """The events of a call that a driver denies without asking the client."""
        denial = DeniedResult(tool_call_id=self.id, output=reason, is_error=True, parent_id=self.parent_id)
        return [self.started(), denial, self.finished(failed=True)]

    def started(self) -> ToolCall:
        """The event of its start."""
        return ToolCall(
            id=self.id,
            name=self.name,
            status="started",
            input=self.input,
            detail=self.detail,
            parent_id=self.parent_id,
            subagent_id=self.subagent_id,
        )

    def result(
        self, output: Any, *, failed: bool, changes: tuple[FileChange, ...] = (), exit_code: int | None = None
    ) -> ToolResult:
        """The event of its result."""
        return ToolResult(
            tool_call_id=self.id,
            output=output,
            is_error=failed,
            parent_id=self.parent_id,
            changes=changes,
            exit_code=exit_code,
        )

    def finished(self, *, failed: bool) -> ToolCall:
        """The event of its end."""
        return ToolCall(id=self.id, name=self.name, status="failed" if failed else "completed", parent_id=self.parent_id)

    def ended(self, output: Any, *, failed: bool, exit_code: int | None = None) -> list[OutputEvent]:
        """The events of its result and its end."""
        return [self.result(output, failed=failed, exit_code=exit_code), self.finished(failed=failed)]


class CallTracker:
    """The calls of one run that have started and not ended, by id."""

    def __init__(self) -> None:
        self.running: dict[str, Call] = {}
        self._streamed: dict[str, int] = {}

    def __contains__(self, call_id: str) -> bool:
        return call_id in self.running

    def start(self, call: Call) -> list[OutputEvent]:
        """The event of the start of a call; nothing if a call with its id is running."""
        if call.id in self.running:
            return []
        self.running[call.id] = call
        return [call.started()]

    def output(self, call_id: str, text: str) -> list[OutputEvent]:
        """The event of a part of the output of a call; nothing if it is not running, or has put out MAX_STREAMED_OUTPUT."""
        before = self._streamed.get(call_id, 0)
        text = text[: MAX_STREAMED_OUTPUT - before]
        if not text or call_id not in self.running:
            return []
        self._streamed[call_id] = before + len(text)
        return [ToolOutput(tool_call_id=call_id, text=text)]

    def end(self, call_id: str, output: Any, *, failed: bool, exit_code: int | None = None) -> list[OutputEvent]:
        """The events of the result and the end of a running call. Raises KeyError if there is none with this id."""
        return self.running.pop(call_id).ended(output, failed=failed, exit_code=exit_code)

    def finish(self, call_id: str, *, failed: bool) -> list[OutputEvent]:
        """The event of the end of a running call whose result the client has. Raises KeyError if there is none with this id."""
        return [self.running.pop(call_id).finished(failed=failed)]

    def fail_all(self) -> list[OutputEvent]:
        """The ends of the calls that are still running when their run is over."""
        calls, self.running = list(self.running.values()), {}
        return [call.finished(failed=True) for call in calls]
