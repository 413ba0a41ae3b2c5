"""The application-side tool calls of an ACP run: matched, sent to the client once, answered once."""

from __future__ import annotations

from typing import Any

import pytest

from drivers.acp.app_tool_calls import MATCHED_DELAY, UNMATCHED_DELAY, UNREPORTED_DELAY, AppToolCalls, by_title
from drivers.acp.tool_calls import ToolCallState
from drivers.contract.agent import PermissionReply, ToolReply
from drivers.contract.events import OutputEvent, ToolCall, ToolResult
from drivers.contract.tool_denials import CANCELLED
from drivers.contract.tool_server import ToolRequest, ToolResponse


@pytest.fixture
def answers() -> list[ToolResponse]:
    return []


@pytest.fixture
def calls(answers: list[ToolResponse]) -> AppToolCalls:
    return AppToolCalls(answers)


def native(call_id: str, given: Any = None, status: str = "in_progress") -> ToolCallState:
    return ToolCallState(call_id, title="mcp__portico__f", raw_input=given, status=status)


def request(request_id: str, call_id: str | None = None, **given: Any) -> ToolRequest:
    return ToolRequest(request_id, "f", given, call_id)


def starts(events: list[OutputEvent]) -> list[tuple[str, Any]]:
    return [(event.id, event.input) for event in events if isinstance(event, ToolCall) and event.status == "started"]


def test_a_call_that_is_reported_first_and_without_its_input(calls: AppToolCalls, answers: list[ToolResponse]) -> None:
    assert calls.report(native("n1"), "f") == []
    assert calls.announce_after() is None
    assert starts(calls.requested(request("r1", a=1))) == [("n1", {"a": 1})]
    assert calls.announce_after() == MATCHED_DELAY
    assert calls.announce() == ([], ["n1"])
    assert calls.announce_after() is None
    assert [event.status for event in calls.reply(ToolReply("n1", "done")) if isinstance(event, ToolCall)] == ["completed"]
    assert answers == [ToolResponse("r1", "done")]
    # Later reports of the agent add nothing.
    assert calls.report(native("n1", status="completed"), "f") == []
    assert calls.reply(ToolReply("n1", "again")) == []
    assert len(answers) == 1


def test_a_call_that_is_requested_before_it_is_reported(calls: AppToolCalls) -> None:
    assert calls.requested(request("r1", a=1)) == []
    assert calls.announce_after() == UNMATCHED_DELAY
    assert starts(calls.report(native("n1"), "f")) == [("n1", {"a": 1})]
    assert calls.announce_after() == MATCHED_DELAY


def test_a_call_that_is_never_reported(calls: AppToolCalls) -> None:
    assert calls.requested(request("r1", a=1)) == []
    events, ids = calls.announce()
    assert (starts(events), ids) == ([("r1", {"a": 1})], ["r1"])
    # Reports of such an agent are not awaited again; a late one adds nothing.
    calls.requested(request("r2", a=2))
    assert calls.announce_after() == UNREPORTED_DELAY
    assert calls.report(native("n1", {"a": 1}), "f") == []
    assert [event.id for event in calls.reply(ToolReply("r1", "x")) if isinstance(event, ToolCall)] == ["r1"]


def test_calls_are_matched_by_id_then_by_input_then_by_order(calls: AppToolCalls) -> None:
    for call_id, given in (("n1", {"a": 1}), ("n2", {"a": 2}), ("n3", None), ("n4", None)):
        calls.report(native(call_id, given), "f")
    for each in (request("r2", a=2), request("r4", "n4", a=9), request("r1", a=1), request("r3", a=7)):
        calls.requested(each)
    found = {call.native_id: (call.request_id, call.input) for call in calls._calls}
    assert found == {"n1": ("r1", {"a": 1}), "n2": ("r2", {"a": 2}), "n3": ("r3", {"a": 7}), "n4": ("r4", {"a": 9})}


def test_calls_that_are_reported_beforehand_are_answered_before_their_requests(
    calls: AppToolCalls, answers: list[ToolResponse]
) -> None:
    for n in (1, 2):
        assert starts(calls.report(native(f"n{n}", {"a": n}), "f")) == [(f"n{n}", {"a": n})]
    assert calls.announce_after() is None
    calls.requested(request("r1", a=1))
    assert calls.announce() == ([], ["n1", "n2"])
    for n in (2, 1):
        calls.reply(ToolReply(f"n{n}", f"{n}"))
    assert answers == [ToolResponse("r1", "1")]
    assert calls.announce_after() is None
    (ended,) = calls.requested(request("r2", a=2))
    assert isinstance(ended, ToolCall) and (ended.id, ended.status) == ("n2", "completed")
    assert answers[1:] == [ToolResponse("r2", "2")]


def test_a_reported_call_that_is_never_requested(calls: AppToolCalls) -> None:
    """The agent itself rejects it, for its input or by a hook."""
    calls.report(native("n1"), "f")
    failed = native("n1", status="failed")
    assert [event.kind for event in calls.report(failed, "f")] == ["tool_call", "tool_result", "tool_call"]
    assert calls.announce() == ([], [])


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (PermissionReply("n1", False, "not today"), "Tool call denied: not today"),
        (PermissionReply("n1", False), "Tool call denied"),
        (PermissionReply("n1", True), "The application allowed this call, but gave no result."),
    ],
)
def test_a_permission_reply_instead_of_a_result(
    calls: AppToolCalls, answers: list[ToolResponse], reply: PermissionReply, expected: str
) -> None:
    calls.report(native("n1"), "f")
    calls.requested(request("r1"))
    result, ended = calls.reply(reply)
    assert isinstance(result, ToolResult) and (result.output, result.is_error) == (expected, True)
    assert isinstance(ended, ToolCall) and ended.status == "failed"
    assert answers == [ToolResponse("r1", expected, is_error=True)]


def test_all_calls_are_cancelled(calls: AppToolCalls, answers: list[ToolResponse]) -> None:
    calls.report(native("n1"), "f")
    calls.requested(request("r1"))
    calls.requested(request("r2"))
    assert [event.kind for event in calls.cancel_all()] == ["tool_result", "tool_call"]
    assert answers == [ToolResponse("r1", CANCELLED, is_error=True), ToolResponse("r2", CANCELLED, is_error=True)]
    assert calls.cancel_all() == []
    assert calls.announce_after() is None


def test_a_call_that_the_agent_cancels(calls: AppToolCalls, answers: list[ToolResponse]) -> None:
    calls.report(native("n1"), "f")
    calls.requested(request("r1"))
    assert [event.kind for event in calls.request_cancelled("r1")] == ["tool_result", "tool_call"]
    assert calls.request_cancelled("r1") == calls.request_cancelled("unknown") == []
    assert calls.reply(ToolReply("n1", "late")) == [] == answers


@pytest.mark.parametrize(
    "title", ["mcp__portico__get_weather", "portico/get_weather", "Tool: portico/get_weather", "mcp.portico.get_weather",
              "get_weather (portico MCP Server)", "portico: get weather", "portico_get_weather"]
)  # fmt: skip
def test_tool_names_are_read_from_titles(title: str) -> None:
    assert by_title(["get_weather", "other"])(ToolCallState("1", title=title)) == "get_weather"


@pytest.mark.parametrize(
    "call",
    [
        ToolCallState("1", title="get_weather"),
        ToolCallState("1", title="mcp__elsewhere__get_weather"),
        ToolCallState("1", title="mcp__portico__unknown"),
        ToolCallState("1", title="rm -rf ~ # mcp__portico__get_weather"),
        ToolCallState("1", title="echo portico get_weather"),
        ToolCallState("1", "execute", title="mcp__portico__get_weather"),
        ToolCallState("1", "edit", title="portico/get_weather"),
        ToolCallState("1", title="Run", raw_input={"server": "elsewhere", "tool": "get_weather"}),
    ],
)
def test_calls_of_the_agents_own_tools(call: ToolCallState) -> None:
    assert by_title(["get_weather"])(call) is None


def test_an_agent_that_names_server_and_tool_in_the_input(calls: AppToolCalls) -> None:
    call = ToolCallState("1", title="Call", raw_input={"server": "portico", "tool": "f", "arguments": {"a": 1}})
    assert by_title(["f"])(call) == "f"
    assert starts(calls.report(call, "f")) == [("1", {"a": 1})]
