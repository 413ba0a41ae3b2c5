"""The messages of one claude turn: stream events and whole messages become text, thinking, tool calls and results."""

from __future__ import annotations

from typing import Any

from drivers.claude.tool_calls import TurnCalls
from drivers.contract.events import AgentToken, MessageEnd, OutputEvent, Thinking

SYNTHETIC = "<synthetic>"
"""The model of messages of the CLI itself: the output of its own commands, with a `local_command_source`; else such as the text
of an API error, which the `result` line has too."""


class MessageStream:
    """The messages of one turn.

    Attributes:
        stop_reason: The model's stop reason of the last message.
        in_message: Whether a message is being streamed.
        context: The tokens of the last request and its response.
    """

    def __init__(self, calls: TurnCalls) -> None:
        self.stop_reason: str | None = None
        self.in_message = False
        self.context: int | None = None
        self._request_tokens = 0
        self._streamed: set[str] = set()
        self._complete = False
        self._has_tokens = False
        self._has_blocks = False
        self._calls = calls
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
        return self._results(message, parent)

    def end(self) -> list[OutputEvent]:
        """The events that are left when the turn is over."""
        return self._message_stop() if self.in_message or self._held else []

    def _raw(self, event: dict[str, Any]) -> list[OutputEvent] | None:
        kind = event["type"]
        if kind == "content_block_delta":
            return self._delta(event["delta"])
        if kind == "message_start":
            left = self.end()
            self._streamed.add(event["message"]["id"])
            self.in_message, self._complete, self._has_tokens, self._has_blocks = True, False, False, False
            return left
        if kind == "message_delta":
            self._complete = True
            self.stop_reason = event["delta"].get("stop_reason") or self.stop_reason
            return []
        if kind == "message_stop":
            return self._message_stop()
        return [] if kind in ("content_block_start", "content_block_stop", "ping") else None

    def _count(self, event: dict[str, Any]) -> None:
        """The tokens of a request are at the start of its response, those of the response at its end."""
        if event["type"] == "message_start":
            self._request_tokens = _sum(
                event["message"].get("usage"), "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"
            )
        elif event["type"] == "message_delta" and self._request_tokens:
            self.context = self._request_tokens + _sum(event.get("usage"), "output_tokens")

    def _delta(self, delta: dict[str, Any]) -> list[OutputEvent] | None:
        kind = delta["type"]
        if kind == "text_delta":
            self._has_tokens = True
            return [AgentToken(text=delta["text"])] if delta["text"] else []
        if kind == "thinking_delta":
            self._has_tokens = True
            return [Thinking(text=delta["thinking"])] if delta["thinking"] else []
        return [] if kind in ("signature_delta", "input_json_delta", "citations_delta") else None

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

    def _results(self, message: dict[str, Any], parent: str | None) -> list[OutputEvent]:
        content = message["content"]
        if not isinstance(content, list):
            return []
        events: list[OutputEvent] = []
        for block in content:
            # Other text in a user line is the CLI's own (interrupts, continuations, a sub-agent's prompt).
            if isinstance(block, dict) and block.get("type") == "tool_result":
                events += self._calls.end(block, parent)
        if self.in_message and parent is None:
            # A tool may end while its message still streams: its result waits until all calls of the message are known.
            self._held += events
            return []
        return events


def _sum(usage: Any, *names: str) -> int:
    values = [usage.get(name) for name in names] if isinstance(usage, dict) else []
    return sum(value for value in values if isinstance(value, int))
