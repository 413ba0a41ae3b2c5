"""The CLI's own modes of claude: which choices a client has, and which inputs are the same. test_dialogues.py has the rest."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from drivers.claude.permissions import answered_input, is_same_input, suggestions_of
from drivers.claude.tools import Toolset
from drivers.contract.agent import ToolReply
from drivers.contract.driver_info import ToolGrant
from tests.drivers.claude.cli import Cli, Json
from tests.drivers.dialogues import PERMITTED

ADD_RULE = {
    "type": "addRules",
    "rules": [{"toolName": "Bash", "ruleContent": "git push *"}],
    "behavior": "allow",
    "destination": "localSettings",
}
ACCEPT_EDITS = {"type": "setMode", "mode": "acceptEdits", "destination": "session"}
ALL_SOURCES = ("user", "project", "local")
QUESTIONS = {"questions": [{"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]}]}


def test_modes_of_the_gateway_need_another_process() -> None:
    own = Cli(Toolset(mode="default"), mode="default", modes=PERMITTED)
    assert not own.codec.set_mode("ask") and not Cli().codec.set_mode("default")
    assert Cli().take({"type": "system", "subtype": "status", "status": None, "permissionMode": "plan"}) == []


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


@pytest.mark.parametrize("destination", ["userSettings", "projectSettings", "localSettings"])
def test_a_rule_holds_for_the_session_where_no_file_may_be_changed(destination: str) -> None:
    request = {"tool_name": "Bash", "permission_suggestions": [{**ADD_RULE, "destination": destination}]}
    [suggestion] = suggestions_of(request, PERMITTED, ())
    assert suggestion.updates[0]["destination"] == "session" and suggestion.choice.name.endswith("in this session")


def test_a_folder_is_allowed_for_the_session_only() -> None:
    update = {"type": "addDirectories", "directories": ["/x"], "destination": "userSettings"}
    [suggestion] = suggestions_of(request(update), PERMITTED, ALL_SOURCES)
    assert suggestion.updates == ({**update, "destination": "session"},)
