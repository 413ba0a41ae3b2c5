"""The messages of one claude turn: stream events and whole messages become text, thinking, tool calls and results."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from drivers.claude.tool_calls import TurnCalls
from drivers.contract.events import NO_USAGE, AgentToken, MessageEnd, OutputEvent, Thinking, Usage

SYNTHETIC = "<synthetic>"
"""The model of messages of the CLI itself: the output of its own commands, with a `local_command_source`; else such as the text
of an API error, which the `result` line has too."""


MAX_PARSED = 1024
"""Characters of an input within which its complete members are looked for: a path and a description come first, a text later.
Each part that has a quotation mark costs up to 15 microseconds within it, and none after it."""


class StreamedInput:
    """The input of a call while the model writes it."""

    def __init__(self, call_id: str, name: str) -> None:
        self.call_id, self.name = call_id, name
        self._json = ""
        self._members = 0

    def add(self, text: str) -> dict[str, Any] | None:
        """Add a part of the input's JSON. Return all complete members if there are more of them now.

        Returns nothing for the whole input, which the CLI reports next.
        """
        if len(self._json) > MAX_PARSED:
            return None
        self._json += text
        if '"' not in text:
            # Only a quotation mark ends a text or begins the next member.
            return None
        members = _complete_members(self._json)
        if members is None or len(members) <= self._members:
            return None
        self._members = len(members)
        return members


def _complete_members(text: str) -> dict[str, Any] | None:
    """The members of an incomplete JSON object that are complete; None for a complete object, or other JSON."""
    try:
        given = from_json(text, allow_partial=True)
    except ValueError:
        return None
    if not isinstance(given, dict) or _is_complete(text):
        return None
    members = list(given.items())
    if members and not isinstance(members[-1][1], str):
        # A number, a list or an object at the end may not be complete. Incomplete texts are omitted already.
        members.pop()
    return dict(members)


def _is_complete(text: str) -> bool:
    if not text.rstrip().endswith("}"):
        return False
    try:
        from_json(text)
    except ValueError:
        return False
    return True


class MessageStream:
    """The messages of one turn.

    Attributes:
        stop_reason: The model's stop reason of the last message.
        in_message: Whether a message is being streamed.
        context: The tokens of the last request and its response.
        message_usage: What the last complete message has used. Messages of sub-agents do not count here.
        usage: The sum of that over all messages.
    """

    def __init__(self, calls: TurnCalls) -> None:
        self.stop_reason: str | None = None
        self.in_message = False
        self.context: int | None = None
        self.message_usage = self.usage = NO_USAGE
        self._request: dict[str, Any] | None = None
        self._streamed: set[str] = set()
        self._complete = False
        self._has_tokens = False
        self._has_blocks = False
        self._calls = calls
        self._writing: StreamedInput | None = None
        self._held: list[OutputEvent] = []

    def read(self, native: dict[str, Any]) -> list[OutputEvent] | None:
        """The events of one line; None for an unknown shape."""
        kind = native["type"]
        if kind == "stream_event":
            if native.get("parent_tool_use_id") is None:
                self._count(native["event"])
            return self._raw(native["event"])
        message, parent = native["message"], native.get("parent_tool_use_id")
        if kind == "assistant":
            of_cli = message.get("model") == SYNTHETIC and "local_command_source" not in native
            return [] if of_cli else self._assistant(message, parent)
        return self._results(message, parent, native.get("tool_use_result"))

    def end(self) -> list[OutputEvent]:
        """The events that are left when the turn is over."""
        return self._message_stop() if self.in_message or self._held else []

    def _raw(self, event: dict[str, Any]) -> list[OutputEvent] | None:
        kind = event["type"]
        if kind == "content_block_delta":
            return self._delta(event["delta"])
        if kind == "content_block_start":
            return self._block_start(event["content_block"])
        if kind == "message_start":
            left = self.end()
            self._streamed.add(event["message"]["id"])
            self.in_message, self._complete, self._has_tokens, self._has_blocks = True, False, False, False
            self._writing = None
            return left
        if kind == "message_delta":
            self._complete = True
            self.stop_reason = event["delta"].get("stop_reason") or self.stop_reason
            return []
        if kind == "message_stop":
            return self._message_stop()
        if kind == "content_block_stop":
            self._writing = None
            return []
        return [] if kind == "ping" else None

    def _block_start(self, block: dict[str, Any]) -> list[OutputEvent]:
        if block.get("type") != "tool_use":
            return []
        # Clients display the call from here on, so that a message that breaks off has to be reported as discarded.
        self._has_tokens = True
        self._writing = StreamedInput(block["id"], block["name"])
        return self._calls.written(block["id"], block["name"], {})

    def _count(self, event: dict[str, Any]) -> None:
        """The tokens of a request are at the start of its response, those of the response at its end."""
        if event["type"] == "message_start":
            usage = event["message"].get("usage")
            self._request = usage if isinstance(usage, dict) else None
        elif event["type"] == "message_delta" and self._request is not None:
            self.message_usage = _message_usage(self._request, event.get("usage"))
            self.usage = self.usage.plus(self.message_usage)
            used = self.message_usage
            self.context = used.input_tokens + used.cache_read + used.cache_write + used.output_tokens
            self._request = None

    def _delta(self, delta: dict[str, Any]) -> list[OutputEvent] | None:
        kind = delta["type"]
        if kind == "text_delta":
            self._has_tokens = True
            return [AgentToken(text=delta["text"])] if delta["text"] else []
        if kind == "thinking_delta":
            self._has_tokens = True
            return [Thinking(text=delta["thinking"])] if delta["thinking"] else []
        if kind == "input_json_delta":
            writing = self._writing
            if writing is not None and (given := writing.add(delta["partial_json"])):
                return self._calls.written(writing.call_id, writing.name, given)
            return []
        return [] if kind in ("signature_delta", "citations_delta") else None

    def _message_stop(self) -> list[OutputEvent]:
        # A stream that broke gets its `message_stop` without a `message_delta`. The CLI asks the model again, but keeps
        # the blocks that were complete, whose tools have run.
        lost = self.in_message and not self._complete and not self._has_blocks
        self.in_message = False
        held, self._held = self._held, []
        if lost:
            return [MessageEnd(discarded=True), *held] if self._has_tokens else held
        return [MessageEnd(), *held]

    def _assistant(self, message: dict[str, Any], parent: str | None) -> list[OutputEvent]:
        events: list[OutputEvent] = []
        streamed = message["id"] in self._streamed
        self._has_blocks = self._has_blocks or (streamed and parent is None)
        for block in message["content"]:
            if block["type"] == "tool_use":
                # No end of the message: its other calls come in lines of their own.
                events += self._calls.start(block, parent)
            elif parent is None and not streamed and (whole := self._whole(block)):
                # A response that was not streamed, after a stream broke: the whole text comes at once.
                events += [*whole, MessageEnd()]
        return events

    def _whole(self, block: dict[str, Any]) -> list[OutputEvent]:
        if block["type"] == "text" and block["text"]:
            return [AgentToken(text=block["text"])]
        if block["type"] == "thinking" and block.get("thinking"):
            return [Thinking(text=block["thinking"])]
        return []

    def _results(self, message: dict[str, Any], parent: str | None, report: Any) -> list[OutputEvent]:
        content = message["content"]
        if not isinstance(content, list):
            return []
        # Other text in a user line is the CLI's own (interrupts, continuations, a sub-agent's prompt).
        results = [block for block in content if isinstance(block, dict) and block.get("type") == "tool_result"]
        if len(results) != 1:
            # The report states not which of them it is about.
            report = None
        events = [event for block in results for event in self._calls.end(block, parent, report)]
        if self.in_message and parent is None:
            # A tool may end while its message still streams: its result waits until all calls of the message are known.
            self._held += events
            return []
        return events


def _message_usage(request: dict[str, Any], response: Any) -> Usage:
    """The native usage of a message: at its start, and at its end, which has the tokens of its response."""
    end = response if isinstance(response, dict) else {}
    details = end.get("output_tokens_details")
    return Usage(
        input_tokens=_int(request.get("input_tokens")),
        output_tokens=_int(end.get("output_tokens")),
        cache_read=_int(request.get("cache_read_input_tokens")),
        cache_write=_int(request.get("cache_creation_input_tokens")),
        reasoning_tokens=_int(details.get("thinking_tokens")) if isinstance(details, dict) else 0,
    )


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 0
