"""Converts the events of a turn to AAP: `delta`, `message` and `none` are three views of the same events. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from drivers.contract.events import (
    DELTA_PREFIX,
    AgentToken,
    Awaiting,
    ContextUse,
    Error,
    Event,
    MessageEnd,
    RateLimit,
    SessionEnd,
    StructuredOutput,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)
from drivers.contract.messages import Message, ToolMessage
from gateway.errors import BadRequest
from gateway.events.event_log import Entry
from gateway.events.log_entries import ClientPermission, Steered, TurnStart
from gateway.events.log_pages import LOST
from gateway.events.messages import EXTENSIONS, MAX_TEXT, NO_REASON, Fold, content_of, failure_message
from gateway.protocols.aap.schema import AgentResponse, PermissionExtension, ToolPermissionMessage, TurnExtension
from gateway.protocols.aap.stop_reasons import stop_reason


def _data(**fields: Any) -> dict[str, Any]:
    needed = [name for name in fields if name != EXTENSIONS]
    return {"type": "object", "properties": fields, **({"required": needed} if needed else {})}


STRING = {"type": "string"}
EVENTS = {
    "session_start": _data(sessionId=STRING),
    "turn_start": _data(),
    "text_delta": _data(delta=STRING),
    "thinking_delta": _data(delta=STRING),
    "text": _data(text=STRING),
    "thinking": _data(thinking=STRING),
    "tool_call": _data(toolCallId=STRING, name=STRING, input={}),
    "tool_result": _data(toolCallId=STRING, content={}),
    "turn_stop": _data(stopReason=STRING, **{EXTENSIONS: {"type": "object"}}),
    "gap": _data(**{"from": {"type": "integer"}, "to": {"type": "integer"}, "reason": STRING}),
}
"""The JSON schemas of the data of the frames, by their names."""
EVENTS_OF_OTHERS = {
    "client_message": {"type": "object", "properties": {"role": STRING}, "required": ["role"]},
    "tool_calls_cancelled": _data(toolCallIds={"type": "array", "items": STRING}),
}
"""The same of frames that only a reader gets who follows the turns of other clients."""


def frame(name: str, data: Any, number: str) -> bytes:
    """Return one SSE frame: `event: NAME`, `data: JSON`, `id: NUMBER`."""
    return b"event: %b\ndata: %b\nid: %b\n\n" % (name.encode(), to_json(data, by_alias=True), number.encode())


_TEXT_DELTA, _THINKING_DELTA = b'event: text_delta\ndata: {"delta":', b'event: thinking_delta\ndata: {"delta":'
_DELTA_END = b"}\n"
_DELTA: dict[type[Event], tuple[bytes, bytes, int]] = {
    AgentToken: (_TEXT_DELTA, DELTA_PREFIX[AgentToken], len(DELTA_PREFIX[AgentToken])),
    Thinking: (_THINKING_DELTA, DELTA_PREFIX[Thinking], len(DELTA_PREFIX[Thinking])),
}
"""The beginning of a delta's frame, and of its event as JSON with its length."""
_EMPTY = len(b'""}')
"""The length of the rest of an event without text as JSON."""
_BEGIN: frozenset[type[Event]] = frozenset((TurnStart, Steered, SessionEnd))
"""Events that are processed between two turns too."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a session's frames: after all frames of the event `seq`, or after its first `part` frames."""

    seq: int
    part: int = 0

    @classmethod
    def parse(cls, text: str) -> Position:
        """Return the position after the frame with this id: `SEQ`, or `SEQ.PART`. Raises BadRequest."""
        seq, dot, part = text.partition(".")
        if not (_is_number(seq) and (_is_number(part) if dot else not part)):
            raise BadRequest(f"{text[:64]!r} is not the id of an event here; pass the last one that you saw, unchanged")
        return cls(int(seq), int(part or 0))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


class StreamView:
    """Frames of turns, for `delta` or (with `whole`) `message`.

    It must be fed from the start of a run; frames up to `seen` are omitted. With `others` it also gives the messages of clients,
    for a reader who did not send them. With `errors_as_text` the reason of a failed turn without text is its text.

    The id of an event's only frame is the event's number. Of several frames the last has that id, and those before it have
    `SEQ.1`, `SEQ.2` and so on: an id identifies exactly what its reader has seen.
    """

    def __init__(self, *, whole: bool, seen: Position | None = None, others: bool = False, errors_as_text: bool = True) -> None:
        self._whole, self._others, self._errors_as_text = whole, others, errors_as_text
        self._seen = seen or Position(0)
        self._last = 0
        self._in_turn = False
        self.stopped = False
        self._pending_calls: tuple[str, ...] = ()
        self._text: list[str] = []
        self._text_size = 0
        self._kind: type[Event] = AgentToken
        self._has_text = self._has_complete_text = False
        self._error: str | None = None
        self._usage: Usage | None = None
        self._context: ContextUse | None = None
        self._limit: RateLimit | None = None
        self._output: StructuredOutput | None = None
        self._counted = False

    def feed(self, entries: Iterable[Entry]) -> bytes:
        """Return the frames of some events, joined."""
        output: list[bytes] = []
        frames: list[bytes] = []
        seen = self._seen.seq
        for seq, event, data in entries:
            if seq != self._last + 1:
                self._gap(seq, output)
            self._last = seq
            kind = type(event)
            if kind in _DELTA and self._in_turn and not self._whole and seq > seen:
                # By the thousand. The stored JSON of the event has the text as JSON.
                name, prefix, skip = _DELTA[kind]
                if data.startswith(prefix):
                    if not self._has_text and kind is AgentToken and len(data) > skip + _EMPTY:
                        self._has_text = True
                    output.append(b"%b%b\nid: %d\n\n" % (name, data[skip:], seq))
                    continue
            handle = _HANDLERS.get(kind)
            if handle is None or not (self._in_turn or kind in _BEGIN):
                continue
            in_turn = self._in_turn
            handle(self, event, frames.append)
            if frames:
                # A stop that the reader has already seen does not end its stream.
                self.stopped |= self._number(seq, frames, output) and in_turn and not self._in_turn
                frames.clear()
        return b"".join(output)

    def _number(self, seq: int, frames: list[bytes], output: list[bytes]) -> bool:
        """Append an event's frames with their ids. Return whether the last one is new to the reader."""
        seen = self._seen
        if seq < seen.seq or (seq == seen.seq and not seen.part):
            return False
        skip = seen.part if seq == seen.seq else 0
        for part, made in enumerate(frames[skip:-1], skip + 1):
            output.append(b"%bid: %d.%d\n\n" % (made, seq, part))
        if skip >= len(frames):
            return False
        output.append(b"%bid: %d\n\n" % (frames[-1], seq))
        return True

    def _gap(self, seq: int, output: list[bytes]) -> None:
        """Append a `gap` if numbers are missing before this one, which only happens after the gateway was killed."""
        first = max(self._last, self._seen.seq) + 1
        if self._last and first < seq:
            output.append(frame("gap", {"from": first, "to": seq - 1, "reason": LOST}, str(seq - 1)))

    def _start(self, event: TurnStart, out: Callable[[bytes], None]) -> None:
        self._in_turn, self._error, self._usage, self._context, self._limit, self._output = True, None, None, None, None, None
        self._counted = False
        self._has_text = self._has_complete_text = False
        self._clear()
        if self._others:
            for message in event.messages:
                out(_frame_without_id("client_message", message))
            for permission in event.permissions:
                out(_frame_without_id("client_message", _permission(permission)))
        out(_frame_without_id("turn_start", {}))

    def _steered(self, event: Steered, out: Callable[[bytes], None]) -> None:
        self._has_text = self._has_complete_text = False
        if not self._in_turn:
            # The stream of the client that sent it begins here, in the middle of the turn.
            self._in_turn = True
            out(_frame_without_id("turn_start", {}))
        elif self._others:
            out(_frame_without_id("client_message", event.message))

    def _delta(self, event: AgentToken | Thinking, out: Callable[[bytes], None]) -> None:
        if type(event) is AgentToken and event.text:
            self._has_text = True
        if not self._whole:
            start = _TEXT_DELTA if type(event) is AgentToken else _THINKING_DELTA
            return out(start + to_json(event.text) + _DELTA_END)
        if type(event) is not self._kind:
            self._flush(event, out)
            self._kind = type(event)
        self._text.append(event.text)
        self._text_size += len(event.text)
        if self._text_size >= MAX_TEXT:
            self._flush(event, out)

    def _flush(self, event: Event, out: Callable[[bytes], None]) -> None:
        text = "".join(self._text)
        self._clear()
        if text:
            name = "text" if self._kind is AgentToken else "thinking"
            out(_frame_without_id(name, {name: text}))

    def _clear(self) -> None:
        self._text.clear()
        self._text_size = 0

    def _message_end(self, event: MessageEnd, out: Callable[[bytes], None]) -> None:
        if event.discarded:
            self._clear()
            self._has_text = self._has_complete_text
        self._has_complete_text = self._has_text
        self._flush(event, out)

    def _call(self, event: ToolCall, out: Callable[[bytes], None]) -> None:
        if event.status == "started" and event.parent_id is None:
            self._flush(event, out)
            given = {} if event.input is None else event.input
            out(_frame_without_id("tool_call", {"toolCallId": event.id, "name": event.name, "input": given}))

    def _result(self, event: ToolResult, out: Callable[[bytes], None]) -> None:
        if event.parent_id is not None:
            return
        self._has_complete_text = self._has_text
        self._flush(event, out)
        result = {"toolCallId": event.tool_call_id, "content": content_of(event.output)}
        out(_frame_without_id("tool_result", {**result, **self._counted_since()}))

    def _record_error(self, event: Error, out: Callable[[bytes], None]) -> None:
        self._error = event.message

    def _count(self, event: Usage, out: Callable[[bytes], None]) -> None:
        self._usage = event if self._usage is None else self._usage.plus(event)
        self._counted = True

    def _measure(self, event: ContextUse, out: Callable[[bytes], None]) -> None:
        self._context, self._counted = event, True

    def _counted_since(self) -> dict[str, TurnExtension]:
        """Return the usage so far as a field of a result's frame, unless the turn has had a frame with it.

        Clients of the protocol keep a message together over fields that they do not know; an event of its own would cut its text.
        """
        own = TurnExtension.of(self._usage, self._context) if self._counted else None
        self._counted = False
        return {} if own is None else {EXTENSIONS: own}

    def _record_limit(self, event: RateLimit, out: Callable[[bytes], None]) -> None:
        self._limit = event

    def _record_output(self, event: StructuredOutput, out: Callable[[bytes], None]) -> None:
        self._output = event

    def _stop(self, event: Awaiting | SessionEnd, out: Callable[[bytes], None]) -> None:
        if not self._in_turn:
            # Not the end of a turn: calls that waited for a client were cancelled.
            if self._others and self._pending_calls:
                out(_frame_without_id("tool_calls_cancelled", {"toolCallIds": self._pending_calls}))
            self._pending_calls = ()
            return
        self._in_turn = False
        self._pending_calls = tuple(call.id for call in event.calls) if isinstance(event, Awaiting) else ()
        self._flush(event, out)
        reason = stop_reason(event)
        error = self._error or NO_REASON if reason == "error" else None
        if error is not None and self._errors_as_text and not self._has_text:
            out(_frame_without_id("text", {"text": error}) if self._whole else _frame_without_id("text_delta", {"delta": error}))
        own = TurnExtension.of(self._usage, self._context, error, self._limit, self._output)
        out(_frame_without_id("turn_stop", {"stopReason": reason, **({EXTENSIONS: own} if own else {})}))


def _frame_without_id(name: str, data: Any) -> bytes:
    """Return a frame without its id, which is added later."""
    return b"event: %b\ndata: %b\n" % (name.encode(), to_json(data, by_alias=True))


def _permission(reply: ClientPermission) -> ToolPermissionMessage:
    own = None if reply.choice is None else PermissionExtension(choice=reply.choice)
    return ToolPermissionMessage(tool_call_id=reply.call_id, granted=reply.granted, reason=reply.reason, own=own)


_HANDLERS: dict[type[Event], Callable[[StreamView, Any, Callable[[bytes], None]], None]] = {
    AgentToken: StreamView._delta,
    Thinking: StreamView._delta,
    MessageEnd: StreamView._message_end,
    ToolCall: StreamView._call,
    ToolResult: StreamView._result,
    Error: StreamView._record_error,
    RateLimit: StreamView._record_limit,
    StructuredOutput: StreamView._record_output,
    Usage: StreamView._count,
    ContextUse: StreamView._measure,
    TurnStart: StreamView._start,
    Steered: StreamView._steered,
    Awaiting: StreamView._stop,
    SessionEnd: StreamView._stop,
}


class JsonView:
    """Collects the messages of one turn, for `none`. `take` removes those so far, for an answer that is too long for memory.

    With `errors_as_text` the reason of a failed turn without text is its last message.
    """

    def __init__(self, *, errors_as_text: bool = True) -> None:
        self._errors_as_text = errors_as_text
        self._fold = Fold()
        self._begun = False
        self._messages: list[Message] = []
        self._results: set[str] = set()
        self._stop: Awaiting | SessionEnd | None = None
        self._error: str | None = None
        self._usage: Usage | None = None
        self._context: ContextUse | None = None
        self._limit: RateLimit | None = None
        self._output: StructuredOutput | None = None

    def feed(self, entries: Iterable[Entry]) -> None:
        for _, event, _ in entries:
            if isinstance(event, Steered) and not self._begun:
                # The client that sent the message does not get it back.
                event = TurnStart()
            self._begun = True
            self._add(self._fold.feed(event))
            if isinstance(event, ToolResult) and event.parent_id is None and event.tool_call_id not in self._results:
                # The call was made in an earlier turn and granted in this one: its result is a message here.
                self._add(self._fold.flush())
                self._add([ToolMessage(tool_call_id=event.tool_call_id, content=content_of(event.output))])
            if type(event) is Usage:
                self._usage = event if self._usage is None else self._usage.plus(event)
            elif isinstance(event, ContextUse):
                self._context = event
            elif isinstance(event, RateLimit):
                self._limit = event
            elif isinstance(event, StructuredOutput):
                self._output = event
            elif isinstance(event, Awaiting | SessionEnd):
                self._stop = event
                if stop_reason(event) == "error":
                    self._failed(self._fold.error or NO_REASON)

    def _failed(self, error: str) -> None:
        self._error = error
        if self._errors_as_text and not self._fold.has_text:
            self._messages.append(failure_message(error))

    def response(self, session_id: str | None = None) -> AgentResponse:
        """Return the response, once the turn is over."""
        reason = stop_reason(self._stop) if self._stop else "error"
        own = TurnExtension.of(self._usage, self._context, self._error, self._limit, self._output)
        return AgentResponse(session_id=session_id, stop_reason=reason, messages=self._messages, own=own)

    def take(self) -> list[Message]:
        """Return the messages so far, and remove them."""
        messages, self._messages = self._messages, []
        return messages

    def _add(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._messages.append(message)
            if isinstance(message, ToolMessage):
                self._results.add(message.tool_call_id)
