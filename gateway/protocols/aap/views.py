"""A turn as AAP shows it: `delta`, `message` and `none` are three views of the same events. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from drivers.contract.agent import PermissionReply
from drivers.contract.events import AgentToken, Awaiting, Error, Event, MessageEnd, SessionEnd, Thinking, ToolCall, ToolResult
from drivers.contract.messages import Message, ToolMessage
from gateway.errors import BadRequest
from gateway.events.event_log import Entry
from gateway.events.log_entries import Steered, TurnStart
from gateway.events.messages import Fold, content_of
from gateway.protocols.aap.schema import AgentResponse, StopReason, ToolPermissionMessage

STOP_REASONS: dict[str, StopReason] = {
    "end_turn": "end_turn",
    "max_tokens": "max_tokens",
    "refusal": "refusal",
    "error": "error",
    # AAP has no word for a run that was stopped on request; it is over, and nothing went wrong.
    "cancelled": "end_turn",
}
LOST = "the gateway was killed; what had these numbers, if anything, was not stored yet and cannot be replayed"


def frame(name: str, data: Any, number: str) -> bytes:
    """One SSE frame: `event: NAME`, `data: JSON`, `id: NUMBER`."""
    return b"event: %b\ndata: %b\nid: %b\n\n" % (name.encode(), to_json(data, by_alias=True), number.encode())


_TEXT_DELTA, _THINKING_DELTA = b'event: text_delta\ndata: {"delta":', b'event: thinking_delta\ndata: {"delta":'
_DELTA_END = b"}\n"
_BEGIN: frozenset[type[Event]] = frozenset((TurnStart, Steered, SessionEnd))
"""What is looked at between two turns."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a session's frames: behind all of the event `seq`, or behind the first `part` frames of it."""

    seq: int
    part: int = 0

    @classmethod
    def parse(cls, text: str) -> Position:
        """The place behind the frame with this id: `SEQ`, or `SEQ.PART`. Raises BadRequest."""
        seq, dot, part = text.partition(".")
        if not (_is_number(seq) and (_is_number(part) if dot else not part)):
            raise BadRequest(f"{text[:64]!r} is not the id of an event here; pass the last one that you saw, unchanged")
        return cls(int(seq), int(part or 0))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


class StreamView:
    """Frames of turns, for `delta` or (with `whole`) `message`.

    It must be fed from the start of a run; frames up to `seen` are left out. With `others` it also shows what clients said: the
    view of one who did not say it.

    An event that gives one frame gives that its number as id. Of several, the last has it, and those before have `SEQ.1`,
    `SEQ.2` and so on: an id says exactly what its reader has seen.
    """

    def __init__(self, *, whole: bool, seen: Position | None = None, others: bool = False) -> None:
        self._whole, self._others = whole, others
        self._seen = seen or Position(0)
        self._last = 0
        self._in_turn = False
        self.stopped = False
        self._open_calls: tuple[str, ...] = ()
        self._text: list[str] = []
        self._kind: type[Event] = AgentToken
        self._error: str | None = None

    def feed(self, entries: Iterable[Entry]) -> bytes:
        """The frames of some events, in one piece."""
        shown: list[bytes] = []
        frames: list[bytes] = []
        for seq, event, _ in entries:
            if seq != self._last + 1:
                self._gap(seq, shown)
            self._last = seq
            kind = type(event)
            show = _SHOW.get(kind)
            if show is None or not (self._in_turn or kind in _BEGIN):
                continue
            in_turn = self._in_turn
            show(self, event, frames.append)
            if frames:
                # What is left out does not stop anybody.
                self.stopped |= self._number(seq, frames, shown) and in_turn and not self._in_turn
                frames.clear()
        return b"".join(shown)

    def _number(self, seq: int, frames: list[bytes], shown: list[bytes]) -> bool:
        """Give an event's frames their ids; whether its last one is new to the reader."""
        seen = self._seen
        if seq < seen.seq or (seq == seen.seq and not seen.part):
            return False
        skip = seen.part if seq == seen.seq else 0
        for part, made in enumerate(frames[skip:-1], skip + 1):
            shown.append(b"%bid: %d.%d\n\n" % (made, seq, part))
        if skip >= len(frames):
            return False
        shown.append(b"%bid: %d\n\n" % (frames[-1], seq))
        return True

    def _gap(self, seq: int, shown: list[bytes]) -> None:
        """Numbers are missing before this one: only where the gateway was killed, or the reader begins here."""
        first = max(self._last, self._seen.seq) + 1
        if self._last and first < seq:
            shown.append(frame("gap", {"from": first, "to": seq - 1, "reason": LOST}, str(seq - 1)))

    def _start(self, event: TurnStart, out: Callable[[bytes], None]) -> None:
        self._in_turn, self._error = True, None
        self._text.clear()
        if self._others:
            for message in event.messages:
                out(_bare("client_message", message))
            for permission in event.permissions:
                out(_bare("client_message", _permission(permission)))
        out(_bare("turn_start", {}))

    def _steered(self, event: Steered, out: Callable[[bytes], None]) -> None:
        if not self._in_turn:
            # The view of the one who said it begins here, in the middle of the turn.
            self._in_turn = True
            out(_bare("turn_start", {}))
        elif self._others:
            out(_bare("client_message", event.message))

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
            out(_bare(name, {name: text}))

    def _message_end(self, event: MessageEnd, out: Callable[[bytes], None]) -> None:
        if event.discarded:
            self._text.clear()
        self._flush(event, out)

    def _call(self, event: ToolCall, out: Callable[[bytes], None]) -> None:
        if event.status == "started" and event.parent_id is None:
            self._flush(event, out)
            given = {} if event.input is None else event.input
            out(_bare("tool_call", {"toolCallId": event.id, "name": event.name, "input": given}))

    def _result(self, event: ToolResult, out: Callable[[bytes], None]) -> None:
        if event.parent_id is not None:
            return
        self._flush(event, out)
        out(_bare("tool_result", {"toolCallId": event.tool_call_id, "content": content_of(event.output)}))

    def _note_error(self, event: Error, out: Callable[[bytes], None]) -> None:
        self._error = event.message

    def _stop(self, event: Awaiting | SessionEnd, out: Callable[[bytes], None]) -> None:
        if not self._in_turn:
            # Nobody's turn: the calls that waited for a client were given up.
            if self._others and self._open_calls:
                out(_bare("tool_calls_cancelled", {"toolCallIds": self._open_calls}))
            self._open_calls = ()
            return
        self._in_turn = False
        self._open_calls = tuple(call.id for call in event.calls) if isinstance(event, Awaiting) else ()
        self._flush(event, out)
        reason = stop_reason(event)
        why = {"error": self._error} if reason == "error" and self._error else {}
        out(_bare("turn_stop", {"stopReason": reason, **why}))


def _bare(name: str, data: Any) -> bytes:
    """A frame that gets its id later."""
    return b"event: %b\ndata: %b\n" % (name.encode(), to_json(data, by_alias=True))


def _permission(reply: PermissionReply) -> ToolPermissionMessage:
    return ToolPermissionMessage(tool_call_id=reply.call_id, granted=reply.granted, reason=reply.reason)


_SHOW: dict[type[Event], Callable[[StreamView, Any, Callable[[bytes], None]], None]] = {
    AgentToken: StreamView._delta,
    Thinking: StreamView._delta,
    MessageEnd: StreamView._message_end,
    ToolCall: StreamView._call,
    ToolResult: StreamView._result,
    Error: StreamView._note_error,
    TurnStart: StreamView._start,
    Steered: StreamView._steered,
    Awaiting: StreamView._stop,
    SessionEnd: StreamView._stop,
}


class JsonView:
    """The messages of one turn, for `none`."""

    def __init__(self) -> None:
        self._fold = Fold()
        self._begun = False
        self._messages: list[Message] = []
        self._stop: Awaiting | SessionEnd | None = None
        self._error: str | None = None

    def feed(self, entries: Iterable[Entry]) -> None:
        for _, event, _ in entries:
            if isinstance(event, Steered) and not self._begun:
                # The one who said it has it already.
                event = TurnStart()
            self._begun = True
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
