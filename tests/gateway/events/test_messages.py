"""The fold of events into messages: what it holds is limited, and nothing is lost where a message is divided."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from drivers.contract.events import (
    AgentToken,
    AwaitedCall,
    Awaiting,
    MessageEnd,
    SessionEnd,
    Thinking,
    ToolCall,
    ToolResult,
    encode_deltas,
)
from drivers.contract.messages import (
    AssistantMessage,
    Message,
    ThinkingBlock,
    ToolMessage,
    ToolUseBlock,
    UserMessage,
    blocks,
    pending_tool_calls,
    text_of,
)
from gateway.events import messages as fold_of_messages
from gateway.events.event_log import Entry
from gateway.events.log_entries import LogEvent, Steered, TurnStart
from gateway.events.messages import Fold
from gateway.protocols.aap import turn_frames
from gateway.protocols.aap.turn_frames import JsonView, StreamView

LIMIT = 1000


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fold_of_messages, turn_frames):
        monkeypatch.setattr(module, "MAX_TEXT", LIMIT)
    monkeypatch.setattr(fold_of_messages, "MAX_WITH_CALLS", 4 * LIMIT)
    monkeypatch.setattr(fold_of_messages, "BLOCK_SIZE", 10)


def fold(events: Iterable[LogEvent]) -> list[list[Message]]:
    """The messages that each event completes."""
    one = Fold()
    return [one.feed(event) for event in events]


def tokens(size: int, step: int = 10, kind: type[AgentToken] | type[Thinking] = AgentToken) -> list[AgentToken | Thinking]:
    digits = itertools.cycle("0123456789")
    return [kind(text=next(digits) * step) for _ in range(size // step)]


def joined(events: Iterable[AgentToken | Thinking]) -> str:
    return "".join(event.text for event in events)


def test_a_long_text_is_several_messages_without_a_loss() -> None:
    # A message up to the limit is one.
    events = tokens(LIMIT - 10)
    assert fold([*events, SessionEnd(exit_code=0)])[-1] == [AssistantMessage(content=joined(events))]
    # A long text is several messages without a loss.
    events = tokens(3 * LIMIT + 50)
    found = fold([*events, MessageEnd(), *events[:5], SessionEnd(exit_code=0)])
    complete = [(n, message) for n, completed in enumerate(found) for message in completed]
    # Each is complete at the event that reaches the limit.
    assert [n for n, _ in complete] == [99, 199, 299, 305, 311]
    texts = [text_of(message.content) for _, message in complete]
    assert [len(text) for text in texts] == [LIMIT, LIMIT, LIMIT, 50, 50]
    assert "".join(texts[:4]) == joined(events)
    # A single event is not divided.
    assert fold([AgentToken(text="a"), AgentToken(text="b" * 5 * LIMIT)])[1] == [AssistantMessage(content="a" + "b" * 5 * LIMIT)]
    # Discarding a message keeps what was complete.
    events = [*tokens(LIMIT), *tokens(20), MessageEnd(discarded=True), AgentToken(text="anew"), SessionEnd(exit_code=0)]
    complete = [text_of(message.content) for done in fold(events) for message in done]
    assert complete == [joined(tokens(LIMIT)), "anew"]


def test_many_short_blocks_are_divided_too() -> None:
    events: list[LogEvent] = [kind(text="x") for _ in range(500) for kind in (AgentToken, Thinking)]
    complete = [message for done in fold([*events, SessionEnd(exit_code=0)]) for message in done]
    sizes = [len(blocks(message.content)) for message in complete]
    assert sum(sizes) == 1000
    assert max(sizes) <= LIMIT // 10
    kinds = [isinstance(block, ThinkingBlock) for message in complete for block in blocks(message.content)]
    assert kinds == [False, True] * 500


def call(name: str, size: int = 0) -> ToolCall:
    return ToolCall(id=name, name="write", status="started", input={"text": "x" * size})


def test_calls_that_wait_together_stay_in_one_message() -> None:
    events = [*tokens(50), call("a", LIMIT), *tokens(LIMIT), call("b"), Awaiting(calls=(AwaitedCall(id="a", wants="result"),))]
    complete = [message for done in fold(events) for message in done]
    assert len(complete) == 1
    assert list(pending_tool_calls(complete)) == ["a", "b"]


def test_even_a_message_with_calls_is_limited() -> None:
    events: list[LogEvent] = [call(f"c{n}", LIMIT) for n in range(20)]
    results = [ToolResult(tool_call_id=f"c{n}", output="done") for n in range(20)]
    complete = [message for done in fold([*events, *results, SessionEnd(exit_code=0)]) for message in done]
    assistants = [message for message in complete if isinstance(message, AssistantMessage)]
    assert [len(message.content) for message in assistants] == [4] * 5
    calls = [block.tool_call_id for message in assistants for block in blocks(message.content) if isinstance(block, ToolUseBlock)]
    assert calls == [f"c{n}" for n in range(20)]
    assert [message.tool_call_id for message in complete if isinstance(message, ToolMessage)] == calls


def test_a_steered_message_stands_behind_the_whole_message() -> None:
    steered = UserMessage(content="more")
    events = [*tokens(50), Steered(message=steered), *tokens(LIMIT), *tokens(20), MessageEnd()]
    complete = [message for done in fold(events) for message in done]
    assert [message.role for message in complete] == ["assistant", "assistant", "user"]


def test_streams_and_json_answers_are_divided_in_the_same_way() -> None:
    events: list[LogEvent] = [
        TurnStart(), *tokens(2 * LIMIT + 30), *tokens(LIMIT + 20, kind=Thinking), call("a"), *tokens(30),
        SessionEnd(exit_code=0),
    ]  # fmt: skip
    entries = [Entry(seq, event, event.encode()) for seq, event in enumerate(events, 1)]
    view = JsonView()
    view.feed(entries)
    sizes = [
        len(getattr(block, "text", "") or getattr(block, "thinking", ""))
        for message in view.response().messages
        for block in (blocks(message.content) if isinstance(message, AssistantMessage) else ())
        if not isinstance(block, ToolUseBlock)
    ]
    assert sizes == [LIMIT, LIMIT, 30, LIMIT, 20, 30]
    stream = StreamView(whole=True).feed(entries).decode()
    frames = [len(block.split('"')[3]) for block in stream.split("\n\n") if block.startswith(("event: text", "event: thinking"))]
    assert frames == sizes


def test_deltas_that_are_fed_at_once_complete_the_same_messages() -> None:
    for size in (30, LIMIT - 10, LIMIT, LIMIT + 10, 2 * LIMIT + 30):
        events = tokens(size)
        single, batch = Fold(), Fold()
        expected = [message for event in events for message in single.feed(event)]
        found = batch.feed(events[0])
        if not batch.feed_deltas(events[1:]):
            found += [message for event in events[1:] for message in batch.feed(event)]
        assert found == expected, size
        assert batch.flush() == single.flush(), size
        thinking = tokens(20, kind=Thinking)
        # Of another kind than what came before.
        assert not Fold().feed_deltas(thinking), size


def test_deltas_that_are_encoded_at_once_are_as_if_encoded_each() -> None:
    for kind in (AgentToken, Thinking):
        for texts in (["a", "b "], ['","', "b"], ['",', "b"], ["\\", '","'], ["é 😀", "\n\x00\x7f", ""], ['"']):
            events = [kind(text=text) for text in texts]
            assert encode_deltas(events) == [event.encode() for event in events], (kind, texts)
            entries = [Entry(seq, event, event.encode()) for seq, event in enumerate([TurnStart(), *events], 1)]
            spaced = [entry._replace(data=entry.data.replace(b'":', b'": ', 1)) for entry in entries]
            # The frame of an event whose stored JSON is not that of `encode`.
            assert StreamView(whole=False).feed(entries) == StreamView(whole=False).feed(spaced), (kind, texts)
