"""The messages of one claude turn: raw stream events and whole messages in, text, thinking, tool calls and results out."""

from __future__ import annotations

from typing import Any

from drivers.claude.tool_calls import Calls
from drivers.contract.events import AgentToken, MessageEnd, OutputEvent, Thinking

SYNTHETIC = "<synthetic>"
"""The model of messages that the CLI makes up itself: what its own commands answer, with a `local_command_source`; else such
as an API error's text, which `result` tells better."""


class MessageStream:
    """One turn. `stop_reason` is the model's own, of the last message; `in_message` is while one streams. `context` is how many
    tokens the last request and its answer had."""

    def __init__(self, calls: Calls) -> None:
        self.stop_reason: str | None = None
        self.in_message = False
        self.context: int | None = None
        self._asked = 0
        self._streamed: set[str] = set()
        self._complete = False
        self._dirty = False
        self._kept = False
        self._calls = calls
        self._held: list[OutputEvent] = []

    def read(self, native: dict[str, Any]) -> list[OutputEvent] | None:
        """The events of one line; None for a shape that is not known."""
        kind = native["type"]
        if kind == "stream_event":
            if native.get("parent_tool_use_id") is None:
                self._count(native["event"])
            return self._raw(native["event"])
        message, parent = native["message"], native.get("parent_tool_use_id")
        if kind == "assistant":
            made_up = message.get("model") == SYNTHETIC and "local_command_source" not in native
            return [] if made_up else self._assistant(message, parent)
        return self._results(message, parent)

    def end(self) -> list[OutputEvent]:
        """What is left when the turn is over."""
        return self._message_stop() if self.in_message or self._held else []

    def _raw(self, event: dict[str, Any]) -> list[OutputEvent] | None:
        kind = event["type"]
        if kind == "content_block_delta":
            return self._delta(event["delta"])
        if kind == "message_start":
            left = self.end()
            self._streamed.add(event["message"]["id"])
            self.in_message, self._complete, self._dirty, self._kept = True, False, False, False
            return left
        if kind == "message_delta":
            self._complete = True
            self.stop_reason = event["delta"].get("stop_reason") or self.stop_reason
            return []
        if kind == "message_stop":
            return self._message_stop()
        return [] if kind in ("content_block_start", "content_block_stop", "ping") else None

    def _count(self, event: dict[str, Any]) -> None:
        """A request's tokens stand at the start of its answer, the answer's at its end."""
        if event["type"] == "message_start":
            self._asked = _sum(
                event["message"].get("usage"), "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"
            )
        elif event["type"] == "message_delta" and self._asked:
            self.context = self._asked + _sum(event.get("usage"), "output_tokens")

    def _delta(self, delta: dict[str, Any]) -> list[OutputEvent] | None:
        kind = delta["type"]
        if kind == "text_delta":
            self._dirty = True
            return [AgentToken(text=delta["text"])] if delta["text"] else []
        if kind == "thinking_delta":
            self._dirty = True
            return [Thinking(text=delta["thinking"])] if delta["thinking"] else []
        return [] if kind in ("signature_delta", "input_json_delta", "citations_delta") else None

    def _message_stop(self) -> list[OutputEvent]:
        # A stream that broke gets its `message_stop` without a `message_delta`; the CLI asks the model again, but keeps
        # the blocks that were whole, and the tools that they called have run.
        lost = self.in_message and not self._complete and not self._kept
        self.in_message = False
        held, self._held = self._held, []
        if lost:
            return [MessageEnd(discarded=True), *held] if self._dirty else held
        return [MessageEnd(), *held]

    def _assistant(self, message: dict[str, Any], parent: str | None) -> list[OutputEvent]:
        events: list[OutputEvent] = []
        streamed = message["id"] in self._streamed
        self._kept = self._kept or (streamed and parent is None)
        for block in message["content"]:
            if block["type"] == "tool_use":
                # Without an end of the message: its other calls come in lines of their own.
                events += self._calls.start(block, parent)
            elif parent is None and not streamed and (whole := self._whole(block)):
                # A request that was not streamed, after a stream broke: the whole text comes at once.
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
