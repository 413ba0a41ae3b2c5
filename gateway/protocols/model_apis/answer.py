"""Converts the events of a turn to what the vendors' APIs have: text, reasoning, calls of the client's tools, usage. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import to_json

from drivers.contract.events import (
    NO_USAGE,
    AgentToken,
    Awaiting,
    Error,
    Event,
    MessageEnd,
    SessionEnd,
    StructuredOutput,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)
from drivers.contract.messages import AssistantMessage, ContentBlock, TextBlock, ToolUseBlock, text_of
from gateway.events.event_log import Entry
from gateway.events.messages import NO_REASON, content_of

ShowTools = Literal["off", "reasoning", "text"]
EndReason = Literal["stop", "length", "refusal", "tool_calls", "cancelled", "error"]
"""Why an answer ends. `tool_calls`: the client is to call its tools."""

_REASONS: dict[str, EndReason] = {
    "end_turn": "stop",
    "max_tokens": "length",
    "refusal": "refusal",
    "cancelled": "cancelled",
    "error": "error",
}
MAX_SHOWN = 200
"""Characters of a call's input, and of the reason why it failed, that a client is shown."""


@dataclass(frozen=True, slots=True)
class Text:
    """A part of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A part of the agent's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer, in words, to a request for JSON of a schema that it does not match."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an application-side tool. The answer ends after it, and the client is to send the result."""

    id: str
    name: str
    input: dict[str, Any]

    @property
    def arguments(self) -> str:
        """The input as JSON text."""
        return to_json(self.input).decode()


Part = Text | Reasoning | Refusal | Call


class Answer:
    """The answer of one turn. `feed` returns its parts as they come; the other members are those of the answer so far.

    `app_tools` are the names of the application-side tools. With `show_tools` other than `off`, calls of the agent's own tools
    are lines of the reasoning, or of the text. With `merged` false each event adds parts of its own, also where several are fed
    together. With `structured` the text is only the JSON value that the client has asked for.
    """

    def __init__(self, app_tools: Iterable[str], show_tools: ShowTools, *, merged: bool = True, structured: bool = False) -> None:
        self._app_tools, self._merged, self._structured = frozenset(app_tools), merged, structured
        self._show_tools: ShowTools = "reasoning" if structured and show_tools == "text" else show_tools
        self._last_message: list[str] = []
        self.refusal = ""
        """The answer in words, if it is not the JSON value that was asked for."""
        self._own_calls: dict[str, str] = {}
        self._named: dict[str, Call] = {}
        """The calls with the name of an application-side tool: of the client once they wait for it, else of the agent itself."""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._between_messages = False
        self.calls: list[Call] = []
        self.usage: Usage = NO_USAGE
        self.end: EndReason | None = None
        self.error: str | None = None
        """Why the run has failed, for people, if `end` is `error`."""
        self.resets_at: float | None = None
        """When the usage limit resets that has ended the run, in seconds since the epoch."""
        self.duration = 0.0
        """Seconds from the prompt to the end of the run, if it has ended."""

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def message(self) -> AssistantMessage:
        """The answer so far as a message of the conversation, as its client has it."""
        text = self.text + self.refusal
        content: list[ContentBlock] = [TextBlock(text=text)] if text else []
        content += [ToolUseBlock(tool_call_id=call.id, name=call.name, input=call.input) for call in self.calls]
        return AssistantMessage(content=tuple(content))

    def feed(self, entries: Iterable[Entry]) -> Sequence[Part]:
        """Return the parts that these events add, deltas of one kind in a row as one part if they are merged."""
        if not self._merged:
            return [part for entry in entries for part in self._feed((entry,))]
        return self._feed(entries)

    def _feed(self, entries: Iterable[Entry]) -> list[Part]:
        parts: list[Part] = []
        for entry in entries:
            self._add(entry.event, parts)
        for part in parts:
            if isinstance(part, Text):
                self._text.append(part.text)
            elif isinstance(part, Reasoning):
                self._reasoning.append(part.text)
            elif isinstance(part, Refusal):
                self.refusal += part.text
            else:
                self.calls.append(part)
        return parts

    def _add(self, event: Event, parts: list[Part]) -> None:
        if isinstance(event, AgentToken):
            self._add_token(event.text, parts)
        elif isinstance(event, Thinking):
            _append(parts, Reasoning(event.text))
        elif isinstance(event, MessageEnd):
            self._between_messages = True
        elif isinstance(event, ToolCall):
            self._add_call(event, parts)
        elif isinstance(event, ToolResult):
            self._add_result(event, parts)
        elif isinstance(event, StructuredOutput):
            self._add_output(event, parts)
        else:
            if isinstance(event, SessionEnd) and self._last_message:
                # Without the value that was asked for, such as because the model's limit has cut it off.
                _append(parts, Text(self._take_last_message()))
            self._add_state(event, parts)

    def _add_state(self, event: Event, parts: list[Part]) -> None:
        if isinstance(event, Usage):
            self.usage = self.usage.plus(event)
        elif isinstance(event, Error):
            self.error, self.resets_at = event.message, event.resets_at
        elif isinstance(event, Awaiting):
            self.end = "tool_calls"
            waiting = [call.id for call in event.calls if call.wants == "result"]
            parts += [self._named[call_id] for call_id in waiting if call_id in self._named]
        elif isinstance(event, SessionEnd):
            self.end, self.duration = _REASONS[event.stop_reason], event.duration_ms / 1000
            self.error = (self.error or NO_REASON) if self.end == "error" else None

    def _add_token(self, text: str, parts: list[Part]) -> None:
        if not self._structured:
            return self._add_text(text, parts)
        if self._between_messages:
            self._last_message.clear()
            self._between_messages = False
        self._last_message.append(text)

    def _take_last_message(self) -> str:
        text = "".join(self._last_message)
        self._last_message.clear()
        return text

    def _add_output(self, event: StructuredOutput, parts: list[Part]) -> None:
        if not self._structured:
            return
        said = self._take_last_message()
        if event.error is None:
            _append(parts, Text(to_json(event.value).decode()))
        else:
            _append(parts, Refusal(f"{said}\n\n[{event.error}]" if said else event.error))

    def _add_text(self, text: str, parts: list[Part]) -> None:
        if self._between_messages and text:
            # Two messages of the agent, such as before and after a call of its own, are one answer here.
            if self._text or any(isinstance(part, Text) for part in parts):
                text = "\n\n" + text
            self._between_messages = False
        _append(parts, Text(text))

    def _add_call(self, event: ToolCall, parts: list[Part]) -> None:
        if event.status != "started":
            return
        if event.name in self._app_tools:
            self._named[event.id] = Call(event.id, event.name, event.input if isinstance(event.input, dict) else {})
            return
        self._own_calls[event.id] = event.name
        given = "" if not event.input else " " + _short(to_json(event.input).decode())
        self._show(f"[{event.name}{given}]", parts)

    def _add_result(self, event: ToolResult, parts: list[Part]) -> None:
        name = self._own_calls.pop(event.tool_call_id, None)
        if name is not None and event.is_error:
            self._show(f"[{name} failed: {_short(text_of(content_of(event.output)))}]", parts)

    def _show(self, line: str, parts: list[Part]) -> None:
        if self._show_tools == "reasoning":
            _append(parts, Reasoning(f"\n{line}\n"))
        elif self._show_tools == "text":
            self._between_messages = True
            self._add_text(line, parts)
            self._between_messages = True


def _append(parts: list[Part], part: Text | Reasoning | Refusal) -> None:
    if not part.text:
        return
    if parts and type(parts[-1]) is type(part):
        part = type(part)(parts.pop().text + part.text)  # type: ignore[union-attr]
    parts.append(part)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_SHOWN else line[: MAX_SHOWN - 1] + "…"
