"""The application-side tool calls of an ACP run: matched, sent to the client once, answered once."""

from __future__ import annotations

from typing import Any

import pytest
from acp.schema import ToolCallUpdate

from drivers.acp.agent_profile import tool_of_meta
from drivers.acp.app_tool_calls import MATCHED_DELAY, UNMATCHED_DELAY, UNREPORTED_DELAY, AppToolCalls, names_of
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
    return ToolCallState(call_id, raw_input=given, status=status)


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
        (PermissionReply("n1", "deny", "not today"), "Tool call denied: not today"),
        (PermissionReply("n1", "deny"), "Tool call denied"),
        (PermissionReply("n1", "allow"), "The application allowed this call, but gave no result."),
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
    "name", ["mcp__portico__get_weather", "mcp_portico.get_weather", "portico_get_weather", "portico-get_weather"]
)
def test_names_that_agents_give_an_application_side_tool(name: str) -> None:
    assert names_of(["other", "get_weather"])[name] == "get_weather"


@pytest.mark.parametrize("name", ["get_weather", "mcp__elsewhere__get_weather", "mcp__portico__unknown", "Portico get_weather"])
def test_names_of_other_tools(name: str) -> None:
    assert name not in names_of(["get_weather"])


def test_names_that_apis_of_models_do_not_accept() -> None:
    names = names_of(["get_weather", "get weather", "ü"])
    assert [names[f"mcp__portico__{name}"] for name in ("get weather", "get_weather", "_")] == ["get weather", "get_weather", "ü"]


@pytest.mark.parametrize(
    ("update", "name"),
    [
        ({"_meta": {"claudeCode": {"toolName": "mcp__portico__f"}}}, "mcp__portico__f"),
        ({"_meta": {"toolName": "mcp__portico__f"}}, "mcp__portico__f"),
        ({"_meta": {"tool_name": "mcp_portico.f"}}, "mcp_portico.f"),
        ({"_meta": {"is_mcp_tool_call": True}, "rawInput": {"server": "portico", "tool": "f"}}, "mcp__portico__f"),
        # The members of the input may be the model's words.
        ({"rawInput": {"server": "portico", "tool": "f"}}, None),
        ({"title": "mcp__portico__f"}, None),
        ({"_meta": {"toolName": {}, "claudeCode": "f", "is_mcp_tool_call": True}}, None),
    ],
)
def test_the_name_of_a_tool_is_what_the_program_of_an_agent_writes(update: dict[str, Any], name: str | None) -> None:
    assert tool_of_meta(ToolCallUpdate.model_validate({"toolCallId": "1", **update})) == name


def test_an_agent_that_names_server_and_tool_in_the_input(calls: AppToolCalls) -> None:
    """codex-acp 2.6.0."""
    call = ToolCallState("1", raw_input={"server": "portico", "tool": "f", "arguments": {"a": 1}})
    assert starts(calls.report(call, "f")) == [("1", {"a": 1})]
    assert starts(calls.requested(request("r1", a=1))) == []
    assert calls.announce() == ([], ["1"])
