"""Events to messages: the one fold, pure. Every protocol's history and every JSON answer come from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from drivers.contract.events import AgentToken, Awaiting, Error, MessageEnd, SessionEnd, Thinking, ToolCall, ToolResult
from drivers.contract.messages import (
    AssistantMessage,
    Content,
    ContentBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolMessage,
    ToolUseBlock,
    UserMessage,
    blocks,
    text_of,
)
from gateway.events.log_entries import LogEvent, Steered, TurnStart
from gateway.store import MessageRow
from gateway.store.messages import NOT_KEPT

CANCELLED = "Tool call cancelled"
NO_REASON = "The turn failed. The agent gave no reason."
EXTENSIONS = "x-portico"
"""The field of messages, events and responses of AAP that has what the protocol does not have."""
MAX_TEXT = 1024 * 1024
"""Characters after which a text block is complete. An assistant message of that size is complete too.

The longest answers of models (128,000 tokens) are shorter: only floods are divided. A single event is never divided.
"""
MAX_WITH_CALLS = 16 * MAX_TEXT
"""The same for a message with calls that have no result yet: all calls that wait together stand in one message."""
BLOCK_SIZE = 1024
"""What a block counts besides its text, about as much as it takes in memory."""
_CONTENT: TypeAdapter[Content] = TypeAdapter(Content)


_FAILURE = {"error": True}


def failure_message(reason: str) -> AssistantMessage:
    """Why a turn without text failed, as a message for clients that display only messages. It is not part of the conversation."""
    return AssistantMessage.model_validate({"content": reason, EXTENSIONS: _FAILURE})


def is_failure_message(message: Message) -> bool:
    """Whether this is a message of `failure_message`, as a client may send one back in the history of a new session."""
    return isinstance(message, AssistantMessage) and (message.model_extra or {}).get(EXTENSIONS) == _FAILURE


def is_kept(message: Message) -> bool:
    """Whether a message is part of the conversation: the CLI has not refused its prompt."""
    return (message.model_extra or {}).get(EXTENSIONS) != NOT_KEPT[EXTENSIONS]


def message_row(message: Message, seq: int | None = None) -> MessageRow:
    """Returns a message as it is stored. The search finds it by the text of a user or an assistant."""
    text = text_of(message.content) if isinstance(message, UserMessage | AssistantMessage) else ""
    return MessageRow(message.model_dump_json(), seq, text)


class Fold:
    """Feed it a run's events in order; it gives each message as soon as that is complete.

    Its memory is limited: a message that is too long is divided at MAX_TEXT, whatever the agent sends.

    `calls` are the ids of calls that started before the first of these events. `steered` are messages that the user sent before
    it, and that wait for the results of these calls.
    """

    def __init__(self, calls: Iterable[str] = (), steered: Iterable[UserMessage] = ()) -> None:
        self._blocks: list[ContentBlock] = []
        self._text: list[str] = []
        self._text_size = self._size = 0
        self._max_size = MAX_TEXT
        self._text_kind: type[AgentToken] | type[Thinking] = AgentToken
        self._open: dict[str, None] = dict.fromkeys(calls)
        self._steered = [*steered]
        self._has_text = self._has_complete_text = False
        self._error: str | None = None

    def feed(self, event: LogEvent) -> list[Message]:
        """The messages that this event completes."""
        kind = type(event)
        # Not isinstance: these two come by the thousand, and it is slow through pydantic's metaclass.
        if (kind is AgentToken or kind is Thinking) and isinstance(event, AgentToken | Thinking):
            done = [] if kind is self._text_kind else self._change_kind(type(event))
            text = event.text
            if text and kind is AgentToken:
                self._has_text = True
            self._text.append(text)
            self._text_size += len(text)
            return done if self._text_size < MAX_TEXT else done + self._end_text()
        if isinstance(event, Steered):
            self._has_text = self._has_complete_text = False
            self._steered.append(event.message)
            return self._take_steered()
        done = self._complete(event)
        return done + self._take_steered() if self._steered else done

    def feed_deltas(self, events: Sequence[AgentToken | Thinking]) -> bool:
        """Feed events of the same kind as the one before. False, and nothing is fed, if they complete a message."""
        texts = [event.text for event in events]
        size = self._text_size + sum(map(len, texts))
        if type(events[0]) is not self._text_kind or size >= MAX_TEXT:
            return False
        if size > self._text_size and self._text_kind is AgentToken:
            self._has_text = True
        self._text += texts
        self._text_size = size
        return True

    def _change_kind(self, kind: type[AgentToken] | type[Thinking]) -> list[Message]:
        self._close_block()
        self._text_kind = kind
        return self._divide()

    def _end_text(self) -> list[Message]:
        self._close_block()
        return self._divide()

    def _divide(self) -> list[Message]:
        """The assistant message so far, if it is long enough to be one by itself."""
        return self.flush() if self._size >= self._max_size else []

    def _complete(self, event: LogEvent) -> list[Message]:
        if isinstance(event, ToolCall):
            return self._call(event)
        if isinstance(event, ToolResult):
            return self._result(event)
        if isinstance(event, MessageEnd) and event.discarded:
            self.discard()
        elif isinstance(event, Awaiting):
            done = self.flush()
            self._begin_turn()
            return done
        elif isinstance(event, MessageEnd):
            return self.flush()
        elif isinstance(event, TurnStart):
            self._begin_turn()
        elif isinstance(event, Error):
            self._error = event.message
        if isinstance(event, SessionEnd):
            return self.flush() + self.cancel_open()
        return []

    def _begin_turn(self) -> None:
        self._has_text = self._has_complete_text = False
        self._error = None

    @property
    def error(self) -> str | None:
        """The reason that the agent or the gateway has given for the failure of this turn, if any."""
        return self._error

    @property
    def has_text(self) -> bool:
        """Whether the turn has text of the agent, after the last message that the user sent in it."""
        return self._has_text

    def _take_steered(self) -> list[Message]:
        """The messages that the user sent meanwhile: they stand between messages, never between a call and its result."""
        if self._blocks or self._text or self._open:
            return []
        steered: list[Message] = [*self._steered]
        self._steered.clear()
        return steered

    @property
    def waiting_messages(self) -> tuple[UserMessage, ...]:
        """The user's messages that wait for the end of the agent's message."""
        return tuple(self._steered)

    def drop_messages(self, count: int) -> None:
        """The first of the user's messages that wait are stored already."""
        del self._steered[:count]

    @property
    def steered_size(self) -> int:
        """The length of the user's messages that wait for the end of the agent's message."""
        parts = (part for message in self._steered for part in blocks(message.content))
        return sum(len(part.text) if isinstance(part, TextBlock) else len(getattr(part, "url", "")) for part in parts)

    @property
    def open(self) -> tuple[str, ...]:
        """The calls without a result."""
        return tuple(self._open)

    def answer(self, call_id: str) -> None:
        """The client has given this call's result itself: the message is stored already, an echo is not a second one."""
        self._open.pop(call_id, None)

    def cancel_open(self) -> list[Message]:
        """Tool messages for the calls that will get no result any more."""
        cancelled = self._cancelled()
        self._open.clear()
        return cancelled

    def if_cancelled(self) -> list[Message]:
        """The messages that a `session_end` directly after an `awaiting` would complete; nothing changes."""
        return [*self._cancelled(), *self._steered]

    def _cancelled(self) -> list[Message]:
        return [ToolMessage(tool_call_id=call_id, content=CANCELLED) for call_id in self._open]

    def discard(self) -> None:
        """Forget the assistant message so far: the agent begins it anew."""
        for block in self._blocks:
            if isinstance(block, ToolUseBlock):
                self._open.pop(block.tool_call_id, None)
        self._blocks.clear()
        self._text.clear()
        self._has_text = self._has_complete_text
        self._begin()

    def _begin(self) -> None:
        self._text_size = self._size = 0
        self._max_size = MAX_TEXT

    def flush(self) -> list[Message]:
        """The assistant message so far, if there is anything in it."""
        self._close_block()
        found, self._blocks = self._blocks, []
        self._has_complete_text = self._has_text
        self._begin()
        if not found:
            return []
        if len(found) == 1 and isinstance(found[0], TextBlock):
            return [AssistantMessage(content=found[0].text)]
        return [AssistantMessage(content=tuple(found))]

    def _call(self, event: ToolCall) -> list[Message]:
        if event.status == "started" and event.parent_id is None:
            self._close_block()
            given = event.input if isinstance(event.input, dict) else {} if event.input is None else {"input": event.input}
            self._blocks.append(ToolUseBlock(tool_call_id=event.id, name=event.name, input=given))
            self._open[event.id] = None
            self._size += len(event.encode()) + BLOCK_SIZE
            self._max_size = MAX_WITH_CALLS
            return self._divide()
        return []

    def _result(self, event: ToolResult) -> list[Message]:
        if event.tool_call_id not in self._open:
            return []
        del self._open[event.tool_call_id]
        return [*self.flush(), ToolMessage(tool_call_id=event.tool_call_id, content=content_of(event.output))]

    def _close_block(self) -> None:
        text = "".join(self._text)
        self._text.clear()
        self._text_size = 0
        if text:
            self._size += len(text) + BLOCK_SIZE
            self._blocks.append(TextBlock(text=text) if self._text_kind is AgentToken else ThinkingBlock(thinking=text))


def content_of(output: Any) -> Content:
    """A tool's output as message content: text and content blocks as they are, any other value as its JSON text."""
    try:
        return _CONTENT.validate_python(output)
    except ValidationError:
        return to_json(output).decode()
