"""A turn as AAP shows it: `delta`, `message` and `none` are three views of the same events. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pydantic_core import to_json

from drivers.events import AgentToken, Awaiting, Error, Event, MessageEnd, SessionEnd, Thinking, ToolCall, ToolResult
from drivers.messages import Message, ToolMessage
from gateway.event_log import Entry
from gateway.history import Fold, content_of
from gateway.protocols.aap.shapes import AgentResponse, StopReason

STOP_REASONS: dict[str, StopReason] = {
    "end_turn": "end_turn",
    "max_tokens": "max_tokens",
    "refusal": "refusal",
    "error": "error",
    # AAP has no word for a run that was stopped on request; it is over, and nothing went wrong.
    "cancelled": "end_turn",
}


def frame(name: str, data: Any) -> bytes:
    """One SSE frame: `event: NAME`, `data: JSON`."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), to_json(data, by_alias=True))


TURN_START = frame("turn_start", {})
_TEXT_DELTA, _THINKING_DELTA = b'event: text_delta\ndata: {"delta":', b'event: thinking_delta\ndata: {"delta":'
_DELTA_END = b"}\n\n"


class StreamView:
    """Frames of one turn, for `delta` or (with `whole`) `message`."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._text: list[str] = []
        self._kind: type[Event] = AgentToken
        self._error: str | None = None

    def feed(self, entries: Iterable[Entry]) -> bytes:
        """The frames of some events, in one piece."""
        shown: list[bytes] = []
        for _, event, _ in entries:
            show = _SHOW.get(type(event))
            if show is not None:
                show(self, event, shown.append)
        return b"".join(shown)

    def _delta(self, event: AgentToken | Thinking, out: Callable[[bytes], None]) -> None:
        if not self._whole:
            start = _TEXT_DELTA if type(event) is AgentToken else _THINKING_DELTA
            return out(start + to_json(event.text) + _DELTA_END)
        if type(event) is not self._kind:
            self._flush(event, out)
            self._kind = type(event)
        self._text.append(event.text)

    def _flush(self, event: Event, out: Callable[[bytes], None]) -> None:
        text = "".join(self._text)
        self._text.clear()
        if text:
            name = "text" if self._kind is AgentToken else "thinking"
            out(frame(name, {name: text}))

    def _message_end(self, event: MessageEnd, out: Callable[[bytes], None]) -> None:
        if event.discarded:
            self._text.clear()
        self._flush(event, out)

    def _call(self, event: ToolCall, out: Callable[[bytes], None]) -> None:
        if event.status == "started" and event.parent_id is None:
            self._flush(event, out)
            given = {} if event.input is None else event.input
            out(frame("tool_call", {"toolCallId": event.id, "name": event.name, "input": given}))

    def _result(self, event: ToolResult, out: Callable[[bytes], None]) -> None:
        if event.parent_id is not None:
            return
        self._flush(event, out)
        out(frame("tool_result", {"toolCallId": event.tool_call_id, "content": content_of(event.output)}))

    def _note_error(self, event: Error, out: Callable[[bytes], None]) -> None:
        self._error = event.message

    def _stop(self, event: Awaiting | SessionEnd, out: Callable[[bytes], None]) -> None:
        self._flush(event, out)
        reason = stop_reason(event)
        why = {"error": self._error} if reason == "error" and self._error else {}
        out(frame("turn_stop", {"stopReason": reason, **why}))


_SHOW: dict[type[Event], Callable[[StreamView, Any, Callable[[bytes], None]], None]] = {
    AgentToken: StreamView._delta,
    Thinking: StreamView._delta,
    MessageEnd: StreamView._message_end,
    ToolCall: StreamView._call,
    ToolResult: StreamView._result,
    Error: StreamView._note_error,
    Awaiting: StreamView._stop,
    SessionEnd: StreamView._stop,
}


class JsonView:
    """The messages of one turn, for `none`."""

    def __init__(self) -> None:
        self._fold = Fold()
        self._messages: list[Message] = []
        self._stop: Awaiting | SessionEnd | None = None
        self._error: str | None = None

    def feed(self, entries: Iterable[Entry]) -> None:
        for _, event, _ in entries:
            self._messages += self._fold.feed(event)
            if isinstance(event, ToolResult) and event.parent_id is None and not self._has_result(event.tool_call_id):
                # Granted in this request, called in an earlier one: its result stands where it came.
                self._messages += self._fold.flush()
                self._messages.append(ToolMessage(tool_call_id=event.tool_call_id, content=content_of(event.output)))
            if isinstance(event, Error):
                self._error = event.message
            elif isinstance(event, Awaiting | SessionEnd):
                self._stop = event

    def response(self, session_id: str | None = None) -> AgentResponse:
        """The answer, once the turn is over."""
        reason = stop_reason(self._stop) if self._stop else "error"
        return AgentResponse(
            session_id=session_id, stop_reason=reason, messages=self._messages, error=self._error if reason == "error" else None
        )

    def _has_result(self, call_id: str) -> bool:
        return any(isinstance(m, ToolMessage) and m.tool_call_id == call_id for m in self._messages)


def stop_reason(event: Awaiting | SessionEnd) -> StopReason:
    """Why the turn stops, in AAP's words."""
    return "tool_use" if isinstance(event, Awaiting) else STOP_REASONS[event.stop_reason]
