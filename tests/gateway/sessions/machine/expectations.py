"""What must hold of the events and messages of a session, worked out without the code under test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from drivers.contract.events import (
    AgentToken,
    Awaiting,
    Commands,
    Error,
    MessageEnd,
    RateLimit,
    SessionEnd,
    Thinking,
    Title,
    ToolCall,
    ToolResult,
    Usage,
)
from drivers.contract.messages import AssistantMessage, Message, TextBlock, ToolMessage, ToolUseBlock, UserMessage, text_of
from gateway.events.log_entries import LogEvent, Steered, TurnStart

CANCELLED = "Tool call cancelled"
Part = tuple[Any, ...]
"""A message: ("user", text), ("assistant", its blocks), or ("result", id of the call, content)."""
GATEWAYS_OWN = (TurnStart, Steered, ToolCall, ToolResult, Awaiting, SessionEnd, Error, RateLimit, Title, Commands)
"""Events that the gateway adds, leaves out or changes. All others are in the log as the agent has sent them."""


@dataclass
class RunInLog:
    """A run, as the events of the log tell it."""

    first: int
    state: str = "running"
    stop_reason: str | None = None
    events: list[LogEvent] = field(default_factory=list)

    def begins_with(self, text: str) -> bool:
        """Whether this is the run of a message of the user."""
        first = self.events[0]
        return isinstance(first, TurnStart) and any(message.content == text for message in first.messages)


class LogReader:
    """Reads a log, event by event: its runs, their states, its messages. `problems` has what cannot be.

    A turn begins with `turn_start` and ends with `awaiting` or `session_end`. A run begins with a message of the user, goes on
    with answers after each `awaiting`, and ends with one `session_end`.
    """

    def __init__(self) -> None:
        self.runs: list[RunInLog] = []
        self.messages: list[Part] = []
        self.problems: list[str] = []
        self.usage = Usage()
        self._usage_of_turn: list[Usage] = []
        self._blocks: list[Part] = []
        self._open: dict[str, None] = {}
        self._steered: list[str] = []

    @property
    def state(self) -> str:
        """The state of the session: `idle`, `running` or `waiting`."""
        return self.runs[-1].state if self.runs and self.runs[-1].state != "ended" else "idle"

    @property
    def waiting_messages(self) -> list[str]:
        """Messages to the agent at work that wait for the end of its own message."""
        return self._steered

    def read(self, entries: Iterable[tuple[int, LogEvent]]) -> LogReader:
        for seq, event in entries:
            self._follow_run(seq, event)
            self._fold(event)
        return self

    # -- runs -------------------------------------------------------------------------------------------------------------

    def _follow_run(self, seq: int, event: LogEvent) -> None:
        if isinstance(event, TurnStart):
            self._begin_turn(seq, event)
        elif isinstance(event, Awaiting | SessionEnd):
            self._end_turn(seq, event)
        elif isinstance(event, Steered):
            self._require("running", seq, event)
        elif isinstance(event, Usage):
            self._usage_of_turn.append(event)
        if self.runs:
            self.runs[-1].events.append(event)

    def _require(self, state: str, seq: int, event: LogEvent) -> None:
        if self.state != state:
            self.problems.append(f"{event.kind} {seq} comes while the session is {self.state}")

    def _begin_turn(self, seq: int, event: TurnStart) -> None:
        if any(isinstance(message, UserMessage) for message in event.messages):
            self._require("idle", seq, event)
            self.runs.append(RunInLog(seq))
        else:
            self._require("waiting", seq, event)
            self.runs[-1].state = "running"

    def _end_turn(self, seq: int, event: Awaiting | SessionEnd) -> None:
        if isinstance(event, Awaiting):
            self._require("running", seq, event)
            self.runs[-1].state = "waiting"
        else:
            if self.state == "idle":
                self.problems.append(f"session_end {seq} ends a run that has ended")
            self.runs[-1].state, self.runs[-1].stop_reason = "ended", event.stop_reason
        for usage in self._usage_of_turn:
            self.usage = self.usage.plus(usage)
        self._usage_of_turn = []

    # -- messages ---------------------------------------------------------------------------------------------------------

    def _fold(self, event: LogEvent) -> None:
        if isinstance(event, AgentToken | Thinking):
            return self._add_text("text" if isinstance(event, AgentToken) else "thinking", event.text)
        if isinstance(event, TurnStart):
            return self._add_messages(event)
        if isinstance(event, Steered):
            self._steered.append(text_of(event.message.content))
        elif isinstance(event, ToolCall | ToolResult):
            self._follow_call(event)
        elif isinstance(event, MessageEnd) and event.discarded:
            for block in self._blocks:
                self._open.pop(block[1], None)
            self._blocks = []
        elif isinstance(event, MessageEnd | Awaiting | SessionEnd):
            self._end_message()
        if isinstance(event, SessionEnd):
            self.messages += [("result", call_id, CANCELLED) for call_id in self._open]
            self._open = {}
        if not self._blocks and not self._open:
            self.messages += [("user", text) for text in self._steered]
            self._steered = []

    def _add_messages(self, event: TurnStart) -> None:
        for message in event.messages:
            self.messages.append(part_of(message))
            if isinstance(message, ToolMessage):
                self._open.pop(message.tool_call_id, None)

    def _follow_call(self, event: ToolCall | ToolResult) -> None:
        if isinstance(event, ToolResult) and event.tool_call_id in self._open:
            del self._open[event.tool_call_id]
            self._end_message()
            self.messages.append(("result", event.tool_call_id, event.output))
        elif isinstance(event, ToolCall) and event.status == "started" and event.parent_id is None:
            self._blocks.append(("call", event.id, event.name))
            self._open[event.id] = None

    def _add_text(self, kind: str, text: str) -> None:
        if self._blocks and self._blocks[-1][0] == kind:
            self._blocks[-1] = (kind, self._blocks[-1][1] + text)
        else:
            self._blocks.append((kind, text))

    def _end_message(self) -> None:
        if self._blocks:
            self.messages.append(("assistant", tuple(self._blocks)))
        self._blocks = []


def part_of(message: Message) -> Part:
    """A stored message, to be compared with those that a `LogReader` finds."""
    if isinstance(message, ToolMessage):
        return "result", message.tool_call_id, message.content
    if not isinstance(message, AssistantMessage):
        return "user", text_of(message.content)
    if isinstance(message.content, str):
        return "assistant", (("text", message.content),)
    return "assistant", tuple(_block(block) for block in message.content)


def _block(block: Any) -> Part:
    if isinstance(block, ToolUseBlock):
        return "call", block.tool_call_id, block.name
    return ("text", block.text) if isinstance(block, TextBlock) else ("thinking", block.thinking)
