"""The claude codec on hook and permission requests in an order that no recording has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drivers.claude.codec import ClaudeCodec
from drivers.contract.agent import PermissionReply, Prompt, ToolReply
from drivers.contract.events import AwaitedCall, Awaiting, Error, Hook, SessionEnd, ToolCall, ToolResult
from tests.drivers.claude.cli import (
    ABORTED,
    RESULT,
    Cli,
    Json,
    awaiting,
    call,
    control,
    decision,
    hook,
    permission,
    result_line,
    stream,
)


def test_an_answer_before_its_request_is_kept() -> None:
    cli = Cli()
    cli.message(("a", "Bash"), ("b", "Bash"), ("c", "mcp__app__weather"))
    [handed] = cli.take(hook("a", "Bash"))
    expected = [("a", "permission"), ("b", "permission"), ("c", "result")]
    assert handed == awaiting(*(AwaitedCall(id=i, wants=w) for i, w in expected)) and cli.codec.phase == "waiting"  # type: ignore[arg-type]
    cli.codec.reply(ToolReply("c", "rain"))
    cli.codec.reply(PermissionReply("b", "deny", "no"))
    assert cli.answers() == {} and cli.codec.phase == "waiting"
    cli.codec.reply(PermissionReply("a", "allow"))
    assert decision(cli.answers()["hook-a"]) == "allow" and cli.codec.phase == "running"
    cli.take(result_line("a"), hook("b", "Bash"))
    denied = cli.answers()["hook-b"]["hookSpecificOutput"]
    assert denied["permissionDecision"] == "deny" and denied["permissionDecisionReason"] == "Tool call denied: no"
    cli.take(hook("c", "mcp__app__weather"), call("c", "weather"))
    answers = cli.answers()
    assert decision(answers["hook-c"]) == "allow"
    assert answers["call-c"]["mcp_response"] == {
        "jsonrpc": "2.0",
        "id": 7,
        "result": {"content": [{"type": "text", "text": "rain"}]},
    }


def test_no_call_is_announced_in_the_middle_of_a_message() -> None:
    cli = Cli()
    cli.take(stream("message_start", message={"id": "m"}))
    cli.take(
        {"type": "assistant", "message": {"id": "m", "content": [{"type": "tool_use", "id": "a", "name": "Bash", "input": {}}]}}
    )
    assert cli.take(hook("a", "Bash")) == [] and cli.codec.phase == "running"
    assert isinstance(cli.take(stream("message_stop"))[-1], Awaiting)


def test_calls_are_announced_after_a_running_trusted_call() -> None:
    cli = Cli()
    cli.message(("a", "Read"), ("b", "Bash"))
    assert cli.take(hook("b", "Bash"), hook("a", "Read")) == []
    events = cli.take(result_line("a"))
    assert isinstance(events[0], ToolResult) and events[-1] == awaiting(AwaitedCall(id="b", wants="permission"))


def test_calls_are_announced_before_a_trusted_call_that_does_not_begin() -> None:
    cli = Cli()
    cli.message(("a", "Bash"), ("b", "Read"))
    assert cli.take(hook("a", "Bash")) == []
    optional = AwaitedCall(id="b", wants="permission", optional=True)
    assert cli.settle() == [awaiting(AwaitedCall(id="a", wants="permission"), optional)]


def test_a_permission_request_without_a_hook_request_is_announced() -> None:
    """An ask rule of the CLI applies if it does not call the hook."""
    cli = Cli()
    cli.message(("a", "Bash"))
    assert isinstance(cli.take(permission("a", "Bash"))[-1], Awaiting)
    cli.codec.reply(PermissionReply("a", "deny"))
    assert cli.answers() == {"may-a": {"behavior": "deny", "message": "Tool call denied"}}


def test_a_grant_answers_the_hook_and_the_permission_request() -> None:
    cli = Cli()
    cli.message(("a", "Bash"))
    cli.take(hook("a", "Bash"))
    cli.codec.reply(PermissionReply("a", "allow"))
    cli.take(permission("a", "Bash"))
    assert cli.answers()["may-a"] == {"behavior": "allow", "updatedInput": {"n": "a"}}


@pytest.mark.parametrize("name", ["Write", "mcp__app__other", "mcp__other__tool", "ExitPlanMode"])
def test_unlisted_tools_are_denied(name: str) -> None:
    cli = Cli()
    cli.message(("a", name))
    assert cli.take(hook("a", name), permission("a", name)) == []
    answers = cli.answers()
    assert decision(answers["hook-a"]) == "deny" and answers["may-a"]["behavior"] == "deny"


def test_the_reason_of_a_denial_is_sent_to_the_cli() -> None:
    cli = Cli()
    cli.message(("a", "Bash"))
    cli.take(hook("a", "Bash"))
    cli.codec.reply(PermissionReply("a", "deny", "no"))
    events = cli.take(result_line("a", "PreToolUse:Bash hook error: Tool call denied: no", failed=True))
    assert events[0] == ToolResult(tool_call_id="a", output="Tool call denied: no", is_error=True)


def test_the_result_of_an_application_side_call_is_not_reported() -> None:
    cli = Cli()
    cli.message(("a", "mcp__app__weather"))
    [handed] = cli.take(hook("a", "mcp__app__weather"), call("a", "weather"))
    assert isinstance(handed, Awaiting)
    cli.codec.reply(ToolReply("a", "rain"))
    assert cli.take(result_line("a", [{"type": "text", "text": "rain"}])) == [
        ToolCall(id="a", name="weather", status="completed")
    ]


def test_events_while_the_run_waits_are_reported_in_the_next_turn() -> None:
    cli = Cli()
    cli.message(("a", "Bash"), ("b", "mcp__app__weather"))
    cli.take(hook("a", "Bash"))
    assert cli.take(result_line("a", "timed out", failed=True), {"type": "unheard"}) == []
    cli.codec.reply(PermissionReply("a", "allow"))
    assert cli.codec.pending == []
    cli.codec.reply(ToolReply("b", "rain"))
    assert [event.kind for event in cli.codec.pending] == ["tool_result", "tool_call", "stdout"]
    assert cli.take(call("b", "weather")) == []


def test_a_turn_that_ends_by_itself_is_over() -> None:
    cli = Cli()
    cli.message(("a", "Bash"))
    cli.take(hook("a", "Bash"))
    events = cli.take(result_line("a", "gone", failed=True), RESULT)
    assert isinstance(events[-1], SessionEnd) and cli.codec.phase == "ready"
    cli.codec.reply(PermissionReply("a", "allow"))
    assert cli.answers() == {}


def test_an_interrupt_cancels_the_pending_calls() -> None:
    cli = Cli()
    cli.take({"type": "system", "subtype": "init", "session_id": "s"})
    cli.message(("a", "Bash"), ("b", "mcp__app__weather"))
    cli.take(hook("a", "Bash"), call("b", "weather"))
    assert cli.codec.interrupt() and cli.codec.phase == "running"
    cancel = {"type": "control_cancel_request", "request_id": "hook-a"}
    notification = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    cancelled = control("c", subtype="mcp_message", server_name="app", message=notification)
    events = cli.take(cancel, cancelled, result_line("a", "stop", failed=True), result_line("b", "stop", failed=True), ABORTED)
    assert not any(isinstance(event, ToolResult) for event in events)
    assert events[-1] == SessionEnd(exit_code=130, stop_reason="cancelled")


def test_a_process_that_ends_while_it_waits() -> None:
    cli = Cli()
    cli.message(("a", "Bash"))
    cli.take(hook("a", "Bash"))
    error, end = cli.codec.exited(137, [])
    assert isinstance(error, Error) and end == SessionEnd(exit_code=137, stop_reason="error")


def test_the_call_of_a_subagent_is_announced_separately() -> None:
    cli = Cli()
    cli.message(("a", "Agent"), ("b", "Bash"))
    cli.take(hook("a", "Agent"), hook("b", "Bash"))
    inner = {"id": "i", "content": [{"type": "tool_use", "id": "c", "name": "Bash", "input": {"n": "c"}}]}
    events = cli.take(hook("c", "Bash", inner=True), {"type": "assistant", "message": inner, "parent_tool_use_id": "a"})
    optional = AwaitedCall(id="a", wants="permission", optional=True)
    assert events == [awaiting(optional, AwaitedCall(id="b", wants="permission"))]
    cli.codec.reply(PermissionReply("b", "allow"))
    started, handed = [*cli.take(result_line("b")), *cli.settle()][-2:]
    assert started == ToolCall(id="c", name="Bash", status="started", input={"n": "c"}, subagent_id="a")
    assert handed == awaiting(AwaitedCall(id="c", wants="permission"))
    cli.codec.reply(PermissionReply("c", "allow"))
    events = cli.take(result_line("c", parent="a"))
    assert [event.parent_id for event in events if isinstance(event, ToolCall | ToolResult)] == [None, None]


@pytest.mark.parametrize(
    "request_",
    [
        {"subtype": "hook_callback"},
        {"subtype": "hook_callback", "input": None},
        {"subtype": "can_use_tool", "tool_name": "Bash"},
        {"subtype": "mcp_message", "message": {"method": "tools/call", "id": 1}},
        {"subtype": "mcp_message"},
        {"subtype": "request_user_dialog"},
        {},
    ],
)
def test_every_request_is_answered(request_: Json) -> None:
    cli = Cli()
    assert cli.take(control("r", **request_)) == []
    answer = cli.answers()["r"]
    if request_.get("subtype") == "hook_callback":
        assert decision(answer) == "deny"
    elif request_.get("subtype") == "can_use_tool":
        assert answer["behavior"] == "deny"
    else:
        assert answer["subtype"] == "error"


def test_mcp_messages() -> None:
    cli = Cli()

    def ask(**message: Any) -> Json:
        cli.take(control("r", subtype="mcp_message", server_name="app", message={"jsonrpc": "2.0", **message}))
        found: Json = cli.answers()["r"]["mcp_response"]
        return found

    opened = ask(method="initialize", id=0, params={"protocolVersion": "2025-11-25"})["result"]
    assert opened["protocolVersion"] == "2025-11-25" and "tools" in opened["capabilities"]
    [tool] = ask(method="tools/list", id=1)["result"]["tools"]
    assert tool["name"] == "weather" and tool["annotations"] == {"readOnlyHint": True}
    assert ask(method="ping", id=2)["result"] == {}
    assert ask(method="resources/list", id=3)["error"]["code"] == -32601
    assert "error" not in ask(method="notifications/initialized")


def test_hooks_of_the_user_are_still_reported() -> None:
    cli = Cli()
    started = {
        "type": "system",
        "subtype": "hook_started",
        "hook_id": "h",
        "hook_name": "PreToolUse:Bash",
        "hook_event": "PreToolUse",
    }
    assert cli.take(started) == [Hook(id="h", name="PreToolUse:Bash", status="started")]


def test_a_continued_turn_sends_a_system_reminder() -> None:
    codec = ClaudeCodec()
    codec.outbox.clear()
    codec.prompt(Prompt("Continue", go_on=True))
    text = json.loads(bytes(codec.outbox))["message"]["content"]
    assert text.startswith("<system-reminder>") and text.endswith("</system-reminder>")
