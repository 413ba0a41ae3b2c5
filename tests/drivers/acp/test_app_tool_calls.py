"""The application-side calls of an ACP run: paired, shown once, answered once."""

from __future__ import annotations

from typing import Any

import pytest

from drivers.acp.app_tool_calls import CANCELLED, PAIRED, UNPAIRED, UNTOLD, AppCalls
from drivers.acp.app_tools import by_title
from drivers.acp.tool_calls import Call
from drivers.contract.agent import PermissionReply, ToolReply
from drivers.contract.events import OutputEvent, ToolCall, ToolResult
from drivers.contract.tool_server import ToolRequest, ToolResponse


@pytest.fixture
def answers() -> list[ToolResponse]:
    return []


@pytest.fixture
def calls(answers: list[ToolResponse]) -> AppCalls:
    return AppCalls(answers)


def native(call_id: str, given: Any = None, status: str = "in_progress") -> Call:
    return Call(call_id, title="mcp__portico__f", raw_input=given, status=status)


def request(request_id: str, call_id: str | None = None, **given: Any) -> ToolRequest:
    return ToolRequest(request_id, "f", given, call_id)


def starts(events: list[OutputEvent]) -> list[tuple[str, Any]]:
    return [(event.id, event.input) for event in events if isinstance(event, ToolCall) and event.status == "started"]


def test_a_call_that_is_told_first_and_without_its_input(calls: AppCalls, answers: list[ToolResponse]) -> None:
    assert calls.told(native("n1"), "f") == []
    assert calls.debounce_seconds() is None
    assert starts(calls.called(request("r1", a=1))) == [("n1", {"a": 1})]
    assert calls.debounce_seconds() == PAIRED
    assert calls.announce() == ([], ["n1"])
    assert calls.debounce_seconds() is None
    assert [event.status for event in calls.reply(ToolReply("n1", "done")) if isinstance(event, ToolCall)] == ["completed"]
    assert answers == [ToolResponse("r1", "done")]
    # What the agent tells of it afterwards is known.
    assert calls.told(native("n1", status="completed"), "f") == []
    assert calls.reply(ToolReply("n1", "again")) == []
    assert len(answers) == 1


def test_a_call_that_comes_before_it_is_told(calls: AppCalls) -> None:
    assert calls.called(request("r1", a=1)) == []
    assert calls.debounce_seconds() == UNPAIRED
    assert starts(calls.told(native("n1"), "f")) == [("n1", {"a": 1})]
    assert calls.debounce_seconds() == PAIRED


def test_a_call_of_which_nothing_is_told(calls: AppCalls) -> None:
    assert calls.called(request("r1", a=1)) == []
    events, ids = calls.announce()
    assert (starts(events), ids) == ([("r1", {"a": 1})], ["r1"])
    # Such an agent is not waited for again; if it tells late, nothing is shown twice.
    calls.called(request("r2", a=2))
    assert calls.debounce_seconds() == UNTOLD
    assert calls.told(native("n1", {"a": 1}), "f") == []
    assert [event.id for event in calls.reply(ToolReply("r1", "x")) if isinstance(event, ToolCall)] == ["r1"]


def test_calls_are_paired_by_id_then_by_input_then_by_order(calls: AppCalls) -> None:
    for call_id, given in (("n1", {"a": 1}), ("n2", {"a": 2}), ("n3", None), ("n4", None)):
        calls.told(native(call_id, given), "f")
    for each in (request("r2", a=2), request("r4", "n4", a=9), request("r1", a=1), request("r3", a=7)):
        calls.called(each)
    found = {call.native: (call.request, call.input) for call in calls._calls}
    assert found == {"n1": ("r1", {"a": 1}), "n2": ("r2", {"a": 2}), "n3": ("r3", {"a": 7}), "n4": ("r4", {"a": 9})}


def test_calls_that_are_told_beforehand_are_answered_before_they_come(calls: AppCalls, answers: list[ToolResponse]) -> None:
    for n in (1, 2):
        assert starts(calls.told(native(f"n{n}", {"a": n}), "f")) == [(f"n{n}", {"a": n})]
    assert calls.debounce_seconds() is None
    calls.called(request("r1", a=1))
    assert calls.announce() == ([], ["n1", "n2"])
    for n in (2, 1):
        calls.reply(ToolReply(f"n{n}", f"{n}"))
    assert answers == [ToolResponse("r1", "1")]
    assert calls.debounce_seconds() is None
    (ended,) = calls.called(request("r2", a=2))
    assert isinstance(ended, ToolCall) and (ended.id, ended.status) == ("n2", "completed")
    assert answers[1:] == [ToolResponse("r2", "2")]


def test_a_call_that_never_comes(calls: AppCalls) -> None:
    """The agent itself refuses it: its input is wrong, or a hook says no."""
    calls.told(native("n1"), "f")
    failed = native("n1", status="failed")
    assert [event.kind for event in calls.told(failed, "f")] == ["tool_call", "tool_result", "tool_call"]
    assert calls.announce() == ([], [])


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (PermissionReply("n1", False, "not today"), "Tool call denied: not today"),
        (PermissionReply("n1", False), "Tool call denied"),
        (PermissionReply("n1", True), "The application allowed this call, but gave no result."),
    ],
)
def test_a_word_instead_of_a_result(calls: AppCalls, answers: list[ToolResponse], reply: PermissionReply, told: str) -> None:
    calls.told(native("n1"), "f")
    calls.called(request("r1"))
    result, ended = calls.reply(reply)
    assert isinstance(result, ToolResult) and (result.output, result.is_error) == (told, True)
    assert isinstance(ended, ToolCall) and ended.status == "failed"
    assert answers == [ToolResponse("r1", told, is_error=True)]


def test_calls_are_given_up(calls: AppCalls, answers: list[ToolResponse]) -> None:
    calls.told(native("n1"), "f")
    calls.called(request("r1"))
    calls.called(request("r2"))
    assert [event.kind for event in calls.give_up()] == ["tool_result", "tool_call"]
    assert answers == [ToolResponse("r1", CANCELLED, is_error=True), ToolResponse("r2", CANCELLED, is_error=True)]
    assert calls.give_up() == []
    assert calls.debounce_seconds() is None


def test_a_call_that_the_agent_gives_up(calls: AppCalls, answers: list[ToolResponse]) -> None:
    calls.told(native("n1"), "f")
    calls.called(request("r1"))
    assert [event.kind for event in calls.withdrawn("r1")] == ["tool_result", "tool_call"]
    assert calls.withdrawn("r1") == calls.withdrawn("unknown") == []
    assert calls.reply(ToolReply("n1", "late")) == [] == answers


@pytest.mark.parametrize(
    "title", ["mcp__portico__get_weather", "portico/get_weather", "Tool: portico/get_weather", "mcp.portico.get_weather",
              "get_weather (portico MCP Server)", "portico: get weather", "portico_get_weather"]
)  # fmt: skip
def test_titles_that_agents_give(title: str) -> None:
    assert by_title(["get_weather", "other"])(Call("1", title=title)) == "get_weather"


@pytest.mark.parametrize(
    "call",
    [
        Call("1", title="get_weather"),
        Call("1", title="mcp__elsewhere__get_weather"),
        Call("1", title="mcp__portico__unknown"),
        Call("1", title="rm -rf ~ # mcp__portico__get_weather"),
        Call("1", title="echo portico get_weather"),
        Call("1", "execute", title="mcp__portico__get_weather"),
        Call("1", "edit", title="portico/get_weather"),
        Call("1", title="Run", raw_input={"server": "elsewhere", "tool": "get_weather"}),
    ],
)
def test_calls_that_are_the_agents_own(call: Call) -> None:
    assert by_title(["get_weather"])(call) is None


def test_an_agent_that_names_server_and_tool_in_the_input(calls: AppCalls) -> None:
    call = Call("1", title="Call", raw_input={"server": "portico", "tool": "f", "arguments": {"a": 1}})
    assert by_title(["f"])(call) == "f"
    assert starts(calls.told(call, "f")) == [("1", {"a": 1})]
