"""A codec of a CLI that writes one JSON object a line: parses lines, looks up handlers, and turns the rest into `stdout`."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from drivers.codecs.repeated_lines import MAX_MISSES, MIN_LINES, Path, RepeatedDelta
from drivers.contract.codec import Codec
from drivers.contract.events import AgentToken, OutputEvent, Stdout, Thinking
from drivers.contract.line_splitter import excerpt, line_parts, parse_object, text_line

Events = list[OutputEvent] | None
"""The events of a message; None if it is not understood, and its line becomes `stdout`."""
Handler = Callable[[Any, dict[str, Any]], Events]
"""A method of a codec, not bound to it, that takes a message."""

CUT_OBJECT = "a line that is not valid JSON"
"""What half an object is called in errors."""
MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""What reading a message raises if it does not have the expected shape."""


class JsonLineCodec(Codec, ABC):
    """A codec whose messages are JSON objects, one a line.

    New releases of a CLI add types, members and shapes. A line that holds no JSON object, has no handler, or does not have the
    shape that its handler expects becomes a `stdout` event, unless the conversation cannot continue without it: that is a
    `protocol_error` with the line. Half an object is one too, but between runs. A line may have several objects, and texts and
    control sequences around them, which other programs have written to the same output.

    Attributes:
        handlers: The handlers of `dispatch`, by the member `type` of a message.
        delta_text: Optional; without it `receive` gets each line. Where a message that is one delta has its text, by the kind of
            its event. A line that differs from the delta before it in this text only is not parsed: it becomes the event of its
            text. So such a repetition must change nothing in the codec, and its event must be that one whatever its text is.
        delta_unread: Optional, with `delta_text`: where such a message has a string that differs from line to line and that the
            codec does not read.
    """

    handlers: ClassVar[Mapping[str, Handler]] = {}
    delta_text: ClassVar[Mapping[type[OutputEvent], Path]] = {}
    delta_unread: ClassVar[Path | None] = None

    def receive_lines(self, lines: Sequence[bytes]) -> list[OutputEvent]:
        if len(lines) < MIN_LINES or not self.delta_text:
            return super().receive_lines(lines)
        events: list[OutputEvent] = []
        position = misses = 0
        while position < len(lines):
            line = lines[position]
            received = self.receive(line)
            events += received
            position += 1
            if self.protocol_error is not None:
                break
            if len(received) == 1 and isinstance(event := received[0], AgentToken | Thinking) and misses < MAX_MISSES:
                repeated = RepeatedDelta.of(line, event, self.delta_text[type(event)], self.delta_unread)
                more = repeated.read(lines, position) if repeated is not None else []
                events += more
                position += len(more)
                misses += not more
        return events

    def receive(self, line: bytes) -> list[OutputEvent]:
        message = parse_object(line)
        return self._receive_parts(line) if message is None else self._receive_object(message, line)

    def _receive_object(self, message: dict[str, Any], line: bytes) -> list[OutputEvent]:
        try:
            events = self.dispatch(message)
        except MALFORMED:
            if (what := self.required(message)) is not None:
                self.reject(line, what)
            events = self.malformed(message)
        return self.deliver(unstructured(line) if events is None else events)

    def _receive_parts(self, line: bytes) -> list[OutputEvent]:
        parts, is_cut = line_parts(line)
        events: list[OutputEvent] = []
        for part in parts:
            text = part.text.encode()
            events += self.deliver(unstructured(text)) if part.message is None else self._receive_object(part.message, text)
            if self.protocol_error is not None:
                return events
        if is_cut and self.phase != "ready":
            self.reject(line, CUT_OBJECT)
        return events

    def dispatch(self, message: dict[str, Any]) -> Events:
        """The events of a message. May raise one of MALFORMED."""
        handler = self.handlers.get(str(message.get("type")))
        return handler(self, message) if handler else None

    def malformed(self, message: dict[str, Any]) -> Events:
        """The events of a message for which `dispatch` has raised. None makes its line a `stdout` event."""
        return None

    def required(self, message: dict[str, Any]) -> str | None:
        """What a message for which `dispatch` has raised is, if the conversation cannot continue without it, such as "a malformed
        response": the response to a request of the handshake, or the end of a run."""
        return None

    def reject(self, line: bytes, what: str) -> None:
        """Set the `protocol_error` to `what` was wrong with a line, and the line."""
        self.protocol_error = f"{self.title} wrote {what}: {excerpt(line)}"

    def deliver(self, events: list[OutputEvent]) -> list[OutputEvent]:
        """What `receive` returns for the events of a line."""
        return events


def unstructured(line: bytes) -> list[OutputEvent]:
    """A line as a `stdout` event; nothing for a blank line."""
    return [Stdout(line=text_line(line))] if line.strip() else []
