"""Views of a turn, for event sequences that the script agent cannot produce."""

from __future__ import annotations

from collections.abc import Iterable

from drivers.contract.events import (
    AgentToken,
    AwaitedCall,
    Awaiting,
    Error,
    OutputEvent,
    SessionEnd,
    Subagent,
    ToolCall,
    ToolResult,
    Usage,
)
from gateway.events.event_log import Entry
from gateway.events.log_entries import TurnStart
from gateway.protocols.aap.turn_frames import JsonView, StreamView
from tests.gateway.requests import parse_frames


def entries(events: Iterable[OutputEvent]) -> list[Entry]:
    """The log entries of a turn with these events."""
    return [Entry(number, event, event.encode()) for number, event in enumerate((TurnStart(), *events), 1)]


def test_result_of_an_earlier_turn_keeps_its_position() -> None:
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


def test_error_text_is_sent_only_with_stop_reason_error() -> None:
    view = StreamView(whole=True)
    stopped = parse_frames(view.feed(entries([Error(message="hm"), SessionEnd(exit_code=0)])).decode())
    assert stopped == [("turn_start", {}), ("turn_stop", {"stopReason": "end_turn"})]
    failed = parse_frames(
        StreamView(whole=True).feed(entries([Error(message="hm"), SessionEnd(exit_code=1, stop_reason="error")])).decode()
    )
    assert failed == [("turn_start", {}), ("turn_stop", {"stopReason": "error", "error": "hm"})]


def test_cancelled_turn_has_stop_reason_end_turn() -> None:
    end = SessionEnd(exit_code=130, stop_reason="cancelled")
    assert parse_frames(StreamView(whole=True).feed(entries([end])).decode())[1:] == [("turn_stop", {"stopReason": "end_turn"})]


def test_text_before_a_pending_call_is_sent() -> None:
    waiting = [AgentToken(text="a"), AgentToken(text="b"), Awaiting(calls=(AwaitedCall(id="c", wants="result"),))]
    assert parse_frames(StreamView(whole=True).feed(entries(waiting)).decode())[1:] == [
        ("text", {"text": "ab"}),
        ("turn_stop", {"stopReason": "tool_use"}),
    ]
