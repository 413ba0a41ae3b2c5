"""Views of a turn, for event sequences that the script agent cannot produce."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drivers.contract.events import (
    AgentToken,
    AwaitedCall,
    Awaiting,
    ContextUse,
    Error,
    MessageEnd,
    RateLimit,
    SessionEnd,
    Subagent,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)
from drivers.contract.messages import UserMessage
from gateway.events.event_log import Entry
from gateway.events.log_entries import LogEvent, Steered, TurnStart
from gateway.events.messages import NO_REASON, Fold, failure_message
from gateway.protocols.aap.turn_frames import JsonView, StreamView
from gateway.runs.agent_output import failure_of
from gateway.store import FailureRecord
from tests.support.sse import parse_frames


def entries(events: Iterable[LogEvent]) -> list[Entry]:
    """The log entries of a turn with these events."""
    return [Entry(number, event, event.encode()) for number, event in enumerate((TurnStart(), *events), 1)]


def test_text_and_errors_of_a_turn() -> None:
    # Result of an earlier turn keeps its position.
    view = JsonView()
    view.feed(
        entries(
            [
                AgentToken(text="Now."),
                ToolResult(tool_call_id="old", output="done"),
                AgentToken(text="Done."),
                SessionEnd(exit_code=0),
            ]
        )
    )
    assert [message.model_dump(by_alias=True) for message in view.response().messages] == [
        {"role": "assistant", "content": "Now."},
        {"role": "tool", "toolCallId": "old", "content": "done"},
        {"role": "assistant", "content": "Done."},
    ]
    # Error text is sent only with stop reason error.
    view = StreamView(whole=True)
    stopped = parse_frames(view.feed(entries([Error(message="hm"), SessionEnd(exit_code=0)])).decode())
    assert stopped == [("turn_start", {}), ("turn_stop", {"stopReason": "end_turn"})]
    failed = parse_frames(
        StreamView(whole=True).feed(entries([Error(message="hm"), SessionEnd(exit_code=1, stop_reason="error")])).decode()
    )
    assert failed[-1] == ("turn_stop", {"stopReason": "error", "x-portico": {"error": "hm"}})
    # End of a turn has the usage limit.
    limited = [RateLimit(status="warning", limit="five_hour", utilization=0.9, resets_at=4102444800), SessionEnd(exit_code=0)]
    stop = parse_frames(StreamView(whole=True).feed(entries(limited)).decode())[-1]
    limit = {"status": "warning", "limit": "five_hour", "utilization": 0.9, "resetsAt": "2100-01-01T00:00:00.000Z"}
    assert stop == ("turn_stop", {"stopReason": "end_turn", "x-portico": {"rateLimit": limit}})
    # Cancelled turn has stop reason end turn.
    end = SessionEnd(exit_code=130, stop_reason="cancelled")
    assert parse_frames(StreamView(whole=True).feed(entries([end])).decode())[1:] == [("turn_stop", {"stopReason": "end_turn"})]
    # Text before a pending call is sent.
    waiting = [AgentToken(text="a"), AgentToken(text="b"), Awaiting(calls=(AwaitedCall(id="c", wants="result"),))]
    assert parse_frames(StreamView(whole=True).feed(entries(waiting)).decode())[1:] == [
        ("text", {"text": "ab"}),
        ("turn_stop", {"stopReason": "tool_use"}),
    ]


def test_calls_of_a_nested_agent_are_omitted() -> None:
    nested = [
        ToolCall(id="task", name="Task", status="started"),
        Subagent(id="task", status="started", label="look"),
        ToolCall(id="inner", name="Read", status="started", parent_id="task"),
        ToolResult(tool_call_id="inner", output="x", parent_id="task"),
        ToolCall(id="inner", name="Read", status="completed", parent_id="task"),
        ToolResult(tool_call_id="task", output=[{"type": "text", "text": "seen"}]),
        ToolCall(id="task", name="Task", status="completed"),
        Usage(),
        SessionEnd(exit_code=0),
    ]
    sent = parse_frames(StreamView(whole=False).feed(entries(nested)).decode())[1:]
    assert sent == [
        ("tool_call", {"toolCallId": "task", "name": "Task", "input": {}}),
        ("tool_result", {"toolCallId": "task", "content": [{"type": "text", "text": "seen"}]}),
        ("turn_stop", {"stopReason": "end_turn"}),
    ]
    view = JsonView()
    view.feed(entries(nested))
    assert [message.role for message in view.response().messages] == ["assistant", "tool"]


def test_results_have_the_usage_so_far() -> None:
    def call(name: str) -> list[LogEvent]:
        started = ToolCall(id=name, name="t", status="started")
        return [started, ToolResult(tool_call_id=name, output=name), ToolCall(id=name, name="t", status="completed")]

    used = Usage(input_tokens=1, output_tokens=2)
    events = [
        used,
        ContextUse(used=3, size=9),
        *call("a"),
        *call("b"),
        used,
        *call("c"),
        Usage(cost_usd=0.5),
        SessionEnd(exit_code=0),
    ]
    once = {"inputTokens": 1, "outputTokens": 2, "cacheReadTokens": 0, "cacheWriteTokens": 0}
    twice = {**once, "inputTokens": 2, "outputTokens": 4}
    context = {"used": 3, "size": 9}
    for whole in (True, False):
        frames = parse_frames(StreamView(whole=whole).feed(entries(events)).decode())
        assert [data for name, data in frames if name == "tool_result"] == [
            {"toolCallId": "a", "content": "a", "x-portico": {"usage": once, "context": context}},
            {"toolCallId": "b", "content": "b"},
            {"toolCallId": "c", "content": "c", "x-portico": {"usage": twice, "context": context}},
        ]
        # No event of its own, and each event of the agent is one frame: the ids are the same as without.
        assert {name for name, _ in frames} == {"turn_start", "tool_call", "tool_result", "turn_stop"}
        own = {"usage": {**twice, "costUsd": 0.5}, "context": context}
        assert frames[-1] == ("turn_stop", {"stopReason": "end_turn", "x-portico": own})
    view = JsonView()
    view.feed(entries(events))
    answer = view.response().model_dump(by_alias=True)
    assert answer["x-portico"] == own
    assert not [message for message in answer["messages"] if "x-portico" in message]


FAILED = SessionEnd(exit_code=1, stop_reason="error")


FAILED_TURNS: list[Any] = [
    ([FAILED], True),
    ([Thinking(text="hm"), FAILED], True),
    ([AgentToken(text=""), FAILED], True),
    ([AgentToken(text="x"), FAILED], False),
    ([AgentToken(text="x"), MessageEnd(), Thinking(text="hm"), FAILED], False),
    ([AgentToken(text="x"), MessageEnd(discarded=True), FAILED], True),
    ([AgentToken(text="x"), MessageEnd(), AgentToken(text="y"), MessageEnd(discarded=True), FAILED], False),
    ([AgentToken(text="x"), Steered(message=UserMessage(content="more")), FAILED], True),
    ([Steered(message=UserMessage(content="more")), AgentToken(text="x"), FAILED], False),
    (
        [
            ToolCall(id="c", name="t", status="started"),
            AgentToken(text="x"),
            ToolResult(tool_call_id="c", output=""),
            AgentToken(text="y"),
            MessageEnd(discarded=True),
            FAILED,
        ],
        False,
    ),
    ([AgentToken(text="x"), Awaiting(calls=()), TurnStart(), FAILED], True),
]


def test_all_views_and_the_store_agree_on_whether_a_failed_turn_has_text() -> None:
    for events, has_reason in FAILED_TURNS:
        turn = entries([*events[:-1], Error(message="away"), events[-1]])
        for whole, frame in ((True, ("text", {"text": "away"})), (False, ("text_delta", {"delta": "away"}))):
            frames = parse_frames(StreamView(whole=whole).feed(turn).decode())
            assert (frames[-2] == frame) == has_reason, (events, has_reason)
            assert frames[-1] == ("turn_stop", {"stopReason": "error", "x-portico": {"error": "away"}}), (events, has_reason)
        view, fold = JsonView(), Fold()
        view.feed(turn)
        assert (failure_message("away") in view.response().messages) == has_reason, (events, has_reason)
        for entry in turn:
            fold.feed(entry.event)
        assert failure_of(fold, FAILED) == FailureRecord("away", has_reason), (events, has_reason)


def test_failed_turn_without_a_reason_has_a_text() -> None:
    frames = parse_frames(StreamView(whole=True).feed(entries([FAILED])).decode())
    assert frames[1][1]["text"] == frames[2][1]["x-portico"]["error"] == NO_REASON
