"""The claude codec in the CLI's own modes: what it passes to the CLI, what it asks the client, and which choices there are."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from drivers.claude.permissions import MODES, answered_input, is_same_input, suggestions_of
from drivers.claude.tools import Toolset
from drivers.contract.agent import PermissionReply, ToolReply
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import AwaitedCall, Awaiting, ModeChanged, OutputEvent, PermissionChoice, ToolCall, ToolResult
from tests.drivers.claude.cli import APP, Cli, Json, control, decision, hook, permission, result_line

PERMITTED = frozenset(mode.id for mode in MODES if not mode.unrestricted)
TOOLS = ("Bash", "Write", "Read", "Agent", "AskUserQuestion", "ExitPlanMode")
ADD_RULE = {
    "type": "addRules",
    "rules": [{"toolName": "Bash", "ruleContent": "git push *"}],
    "behavior": "allow",
    "destination": "localSettings",
}
ACCEPT_EDITS = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
ALL_SOURCES = ("user", "project", "local")
QUESTIONS = {"questions": [{"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]}]}


def cli(*, trusted: tuple[str, ...] = (), ruled: tuple[str, ...] = (), mode: str = "default") -> Cli:
    grants = [ToolGrant(name, name in trusted) for name in TOOLS]
    tools = Toolset(grants, APP, mode=mode, ruled=lambda name: name in ruled)
    return Cli(tools, mode=mode, modes=PERMITTED, folder="/work", sources=ALL_SOURCES)


def awaited(events: list[OutputEvent]) -> tuple[AwaitedCall, ...]:
    assert isinstance(events[-1], Awaiting)
    return events[-1].calls


def test_a_call_that_the_cli_permits_is_not_asked_about() -> None:
    found = cli()
    found.message(("a", "Read"))
    assert found.take(hook("a", "Read")) == [] and found.answers() == {"hook-a": {}}
    assert [type(event) for event in found.take(result_line("a"))] == [ToolResult, ToolCall]


def test_a_trusted_call_is_allowed_and_an_unlisted_one_denied() -> None:
    found = cli(trusted=("Bash",))
    found.message(("a", "Bash"), ("b", "WebFetch"))
    found.take(hook("a", "Bash"), hook("b", "WebFetch"), permission("a", "Bash"))
    answers = found.answers()
    assert (decision(answers["hook-a"]), decision(answers["hook-b"])) == ("allow", "deny")
    assert answers["may-a"]["behavior"] == "allow"


def test_a_call_that_the_cli_asks_about_is_asked_about_with_its_choices() -> None:
    found = cli()
    found.message(("a", "Bash"))
    found.take(hook("a", "Bash"))
    [call] = awaited(found.take(permission("a", "Bash", permission_suggestions=[ADD_RULE, ACCEPT_EDITS])))
    assert call == AwaitedCall(
        id="a",
        wants="permission",
        choices=(
            PermissionChoice(id="rule:0", name="Always allow Bash(git push *) in this project", kind="allow_always"),
            PermissionChoice(id="mode:acceptEdits", name="Accept all edits in this session", kind="allow_always"),
        ),
    )
    found.answers()
    found.codec.reply(PermissionReply("a", "allow", choice="rule:0"))
    assert found.answers()["may-a"] == {"behavior": "allow", "updatedInput": {"n": "a"}, "updatedPermissions": [ADD_RULE]}


@pytest.mark.parametrize(("granted", "behavior"), [(True, "allow"), (False, "deny")])
def test_an_answer_without_a_choice_changes_no_rules(granted: bool, behavior: str) -> None:
    found = cli()
    found.message(("a", "Bash"))
    found.take(hook("a", "Bash"), permission("a", "Bash", permission_suggestions=[ADD_RULE]))
    found.answers()
    found.codec.reply(PermissionReply("a", "allow" if granted else "deny", choice="unknown"))
    answer = found.answers()["may-a"]
    assert answer["behavior"] == behavior and "updatedPermissions" not in answer


def test_the_gateway_is_asked_before_the_cli_where_a_rule_may_match() -> None:
    found = cli(ruled=("Bash",))
    found.message(("a", "Bash"))
    [call] = awaited(found.take(hook("a", "Bash")))
    assert call.decided_by == "cli" and found.answers() == {}
    found.codec.reply(PermissionReply("a", "leave"))
    assert found.answers() == {"hook-a": {}} and found.codec.phase == "running"
    [call] = awaited(found.take(permission("a", "Bash")))
    assert call.decided_by == "gateway"
    found.codec.reply(PermissionReply("a", "deny", "no"))
    assert found.answers()["may-a"] == {"behavior": "deny", "message": "Tool call denied: no"}


@pytest.mark.parametrize("granted", [True, False])
def test_a_decision_of_the_gateway_answers_hook_and_permission_request(granted: bool) -> None:
    found = cli(ruled=("Bash",))
    found.message(("a", "Bash"))
    found.take(hook("a", "Bash"))
    found.codec.reply(PermissionReply("a", "allow" if granted else "deny"))
    found.take(permission("a", "Bash"))
    answers = found.answers()
    assert decision(answers["hook-a"]) == ("allow" if granted else "deny")
    assert answers["may-a"]["behavior"] == ("allow" if granted else "deny")


def test_a_call_with_another_input_is_another_call() -> None:
    found = cli()
    found.message(("a", "Bash"))
    found.take(hook("a", "Bash"))
    events = found.take(permission("a", "Bash", {"n": "other"}))
    assert [(event.id, event.status) for event in events if isinstance(event, ToolCall)] == [("a", "failed"), ("a-2", "started")]
    assert events[2].input == {"n": "other"} and [call.id for call in awaited(events)] == ["a-2"]  # type: ignore[union-attr]
    found.codec.reply(PermissionReply("a-2", "allow"))
    assert found.answers()["may-a"]["updatedInput"] == {"n": "other"}
    [output, ended] = found.take(result_line("a"))
    assert isinstance(output, ToolResult) and output.tool_call_id == "a-2"
    assert isinstance(ended, ToolCall) and (ended.id, ended.status) == ("a-2", "completed")


@pytest.mark.parametrize(("path", "call_id"), [("/work/a.txt", "a"), ("/elsewhere/a.txt", "a-2")])
def test_a_relative_path_is_in_the_working_folder(path: str, call_id: str) -> None:
    found = cli()
    found.message(("a", "Write"), given={"file_path": "a.txt"})
    found.take(hook("a", "Write"))
    assert [call.id for call in awaited(found.take(permission("a", "Write", {"file_path": path})))] == [call_id]


def test_a_call_out_of_a_run_that_the_cli_asks_about_is_denied() -> None:
    found = cli()
    found.take({"type": "result", "subtype": "success", "is_error": False})
    found.answers()
    assert [event.kind for event in found.take(hook("a", "Bash"), permission("a", "Bash"))] == [
        "tool_call",
        "tool_result",
        "tool_call",
    ]
    assert found.answers()["may-a"]["behavior"] == "deny"


def test_a_subagents_call_that_the_cli_asks_about_becomes_a_call_of_its_own() -> None:
    found = cli()
    found.message(("a", "Agent"))
    found.take(hook("a", "Agent"))
    block = {"type": "tool_use", "id": "b", "name": "Bash", "input": {"n": "b"}}
    [started] = found.take({"type": "assistant", "message": {"id": "i", "content": [block]}, "parent_tool_use_id": "a"})
    assert isinstance(started, ToolCall) and started.parent_id == "a"
    found.take(hook("b", "Bash", inner=True), permission("b", "Bash", agent_id="x"))
    again, asked = found.settle()
    assert isinstance(again, ToolCall) and (again.id, again.parent_id) == ("b", None)
    assert [call.id for call in awaited([asked])] == ["b"]


def test_a_call_is_asked_about_beside_one_that_runs_for_long() -> None:
    found = cli()
    found.message(("a", "Agent"), ("b", "Bash"))
    found.take(hook("a", "Agent"), hook("b", "Bash"), permission("b", "Bash"))
    [asked] = found.settle()
    assert [call.id for call in awaited([asked])] == ["b"]


def test_a_plan_starts_with_the_question_about_it() -> None:
    found = cli(mode="plan")
    assert not any(isinstance(event, ToolCall) for event in found.message(("a", "ExitPlanMode"), given={}))
    plan = {"plan": "# Plan", "planFilePath": "/p.md"}
    events = found.take(hook("a", "ExitPlanMode"), permission("a", "ExitPlanMode", plan))
    assert isinstance(events[0], ToolCall) and events[0].input == plan
    [call] = awaited(events)
    assert [(choice.id, choice.kind) for choice in call.choices] == [
        ("mode:autoMode", "allow_always"),
        ("mode:acceptEdits", "allow_always"),
        ("mode:default", "allow_once"),
        ("keep_planning", "reject_once"),
    ]
    found.answers()
    found.codec.reply(PermissionReply("a", "allow", choice="mode:autoMode"))
    assert found.answers()["may-a"]["updatedPermissions"] == [{"type": "setMode", "mode": "auto", "destination": "session"}]
    assert found.take(status("auto")) == [ModeChanged(mode="autoMode")]


def test_a_plan_that_is_not_approved() -> None:
    found = cli(mode="plan")
    found.message(("a", "ExitPlanMode"), given={})
    found.take(hook("a", "ExitPlanMode"), permission("a", "ExitPlanMode", {"plan": "x"}))
    found.answers()
    found.codec.reply(PermissionReply("a", "deny", choice="keep_planning"))
    denied = {"behavior": "deny", "message": "Tool call denied: the user wants to keep planning"}
    assert found.answers()["may-a"] == denied


def status(mode: str) -> Json:
    return {"type": "system", "subtype": "status", "status": None, "permissionMode": mode}


def test_a_mode_is_changed_by_request_and_reported_if_the_cli_refuses_it() -> None:
    found = cli()
    found.written()
    assert found.codec.set_mode("autoMode")
    [line] = found.written()
    assert line["request"] == {"subtype": "set_permission_mode", "mode": "auto"}
    assert found.take(status("auto")) == []
    assert found.take(status("plan")) == [ModeChanged(mode="plan")]
    assert found.codec.set_mode("default")
    [line] = found.written()
    error = {"subtype": "error", "request_id": line["request_id"], "error": "no"}
    assert found.take({"type": "control_response", "response": error}) == [ModeChanged(mode="plan")]
    # The request has its response: it is not kept for the life of the session.
    assert found.take({"type": "control_response", "response": error}) == []
    assert found.codec.set_mode("acceptEdits")
    [again] = found.written()
    assert again["request_id"] != line["request_id"]


def test_modes_of_the_gateway_need_another_process() -> None:
    assert not cli().codec.set_mode("ask") and not Cli().codec.set_mode("default")
    assert Cli().take(status("plan")) == []


@pytest.mark.parametrize("mode", [None, "default", "bypassPermissions"])
def test_a_question_waits_for_the_users_answer_in_each_mode(mode: str | None) -> None:
    tools = Toolset([ToolGrant("AskUserQuestion", mode is None)], mode=mode)
    found = Cli(tools, mode=mode, modes=PERMITTED)
    found.message(("a", "AskUserQuestion"), given=QUESTIONS)
    found.take(hook("a", "AskUserQuestion"))
    assert found.answers() == {"hook-a": {}}
    assert [call.wants for call in awaited(found.take(permission("a", "AskUserQuestion", QUESTIONS)))] == ["answer"]
    found.codec.reply(ToolReply("a", "B"))
    assert found.answers()["may-a"] == {"behavior": "allow", "updatedInput": {**QUESTIONS, "answers": {"Which?": "B"}}}
    [ended] = found.take(result_line("a"))
    assert isinstance(ended, ToolCall) and ended.status == "completed"


@pytest.mark.parametrize(
    ("content", "answers"),
    [
        ("B", {"Which?": "B"}),
        (json.dumps({"answers": {"Which?": "A"}}), {"Which?": "A"}),
        (json.dumps({"answers": {"Which?": ["A", "b, c"]}}), {"Which?": 'A, "b, c"'}),
        (json.dumps({"answers": 5}), {"Which?": '{"answers": 5}'}),
        ("[1]", {"Which?": "[1]"}),
    ],
)
def test_answers_are_text_or_json(content: str, answers: Json) -> None:
    assert answered_input(QUESTIONS, ToolReply("a", content))["answers"] == answers


def request(*updates: Json, tool: str = "Bash", **more: Any) -> Json:
    return {"tool_name": tool, "permission_suggestions": list(updates), **more}


def test_rules_are_for_the_session_where_the_settings_file_does_not_apply() -> None:
    [suggestion] = suggestions_of(request(ADD_RULE), PERMITTED, ("user",))
    assert suggestion.choice.name == "Always allow Bash(git push *) in this session"
    assert suggestion.updates == ({**ADD_RULE, "destination": "session"},)


@pytest.mark.parametrize(
    "asked",
    [
        request(ADD_RULE, matched_ask_rule={"toolName": "Bash"}),
        request(ADD_RULE, suppress_always_allow_rule=True),
        request({**ADD_RULE, "behavior": "deny"}),
        request({"type": "setMode", "mode": "bypassPermissions", "destination": "session"}),
        request({"type": "setMode", "mode": "dontAsk", "destination": "session"}),
        request({"type": "removeRules"}),
    ],
)
def test_suggestions_that_are_no_choice(asked: Json) -> None:
    assert suggestions_of(asked, PERMITTED | {"bypassPermissions"}, ALL_SOURCES) == []


def test_no_mode_is_suggested_that_the_session_may_not_have() -> None:
    assert suggestions_of(request(ACCEPT_EDITS), frozenset({"default"}), ALL_SOURCES) == []
    plan = suggestions_of(request(tool="ExitPlanMode"), frozenset({"default"}), ALL_SOURCES)
    assert [one.choice.id for one in plan] == ["mode:default", "keep_planning"]


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ({"file_path": "a.txt"}, {"file_path": "/work/a.txt"}, True),
        ({"file_path": "./a.txt", "x": False}, {"file_path": "/work/a.txt"}, True),
        ({"path": "."}, {"path": "/work"}, True),
        ({"file_path": "a.txt"}, {"file_path": "/etc/a.txt"}, False),
        ({"file_path": "a.txt"}, {"file_path": "/work/../a.txt"}, False),
        ({"file_path": "/work/a.txt"}, {"file_path": "/etc/work/a.txt"}, False),
        ({"file_path": "../a.txt"}, {"file_path": "/work/a.txt"}, False),
        ({"command": "rm x"}, {"command": "/bin/rm x"}, False),
        ({"command": "a"}, {"command": "a", "timeout": 5}, False),
        ({"content": ""}, {"content": "x"}, False),
    ],
)
def test_inputs_that_differ_in_form_only_are_the_same(before: Json, after: Json, same: bool) -> None:
    assert is_same_input(before, after, "/work") is same


def arguments(tools: Toolset) -> dict[str, str]:
    found = tools.arguments()
    return {flag: value for flag, value in itertools.pairwise(found) if flag.startswith("--")}


def test_the_hook_applies_whatever_the_settings_are() -> None:
    settings = Toolset([ToolGrant("Bash")], mode="autoMode").settings()
    assert settings == {"env": {"CLAUDE_CODE_SIMPLE": ""}}
    ruled = Toolset([ToolGrant("Bash")], mode="autoMode", ruled=lambda tool: tool == "Bash")
    assert ruled.settings()["disableSkillShellExecution"] is True
    assert arguments(ruled)["--permission-mode"] == "auto"


def test_unknown_requests_are_answered() -> None:
    found = cli()
    found.take(control("x", subtype="request_user_dialog"))
    assert "not supported" in str(found.answers())


@pytest.mark.parametrize("case", ["rules", "the CLI's mode", "ask"])
def test_a_grant_is_for_the_input_that_was_granted(case: str) -> None:
    found = (
        Cli(Toolset([ToolGrant("Bash")]), folder="/work") if case == "ask" else cli(ruled=("Bash",) if case == "rules" else ())
    )
    found.message(("a", "Bash"))
    found.take(hook("a", "Bash"))
    if case == "the CLI's mode":
        found.take(permission("a", "Bash"))
    found.codec.reply(PermissionReply("a", "allow"))
    found.answers()
    events = found.take(permission("a", "Bash", {"n": "other"}))
    [call] = awaited(events)
    assert call.id == "a-2" and call.decided_by == "gateway" and "may-a" not in found.answers()
    found.codec.reply(PermissionReply("a-2", "deny", "no"))
    assert found.answers()["may-a"]["behavior"] == "deny"


@pytest.mark.parametrize("destination", ["userSettings", "projectSettings", "localSettings"])
def test_a_rule_holds_for_the_session_where_no_file_may_be_changed(destination: str) -> None:
    request = {"tool_name": "Bash", "permission_suggestions": [{**ADD_RULE, "destination": destination}]}
    [suggestion] = suggestions_of(request, PERMITTED, ())
    assert suggestion.updates[0]["destination"] == "session" and suggestion.choice.name.endswith("in this session")


def test_a_folder_is_allowed_for_the_session_only() -> None:
    update = {"type": "addDirectories", "directories": ["/x"], "destination": "userSettings"}
    [suggestion] = suggestions_of(request(update), PERMITTED, ALL_SOURCES)
    assert suggestion.updates == ({**update, "destination": "session"},)


def test_a_denied_call_stays_denied_with_another_input() -> None:
    found = cli(ruled=("Bash",))
    found.message(("a", "Bash"))
    found.take(hook("a", "Bash"))
    found.codec.reply(PermissionReply("a", "deny"))
    assert found.take(permission("a", "Bash", {"n": "other"})) == []
    assert found.answers()["may-a"]["behavior"] == "deny"
