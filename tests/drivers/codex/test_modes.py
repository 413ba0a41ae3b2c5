"""The modes of codex: approval policy, sandbox and tools of each, and the answers that the CLI suggests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drivers.codex.grants import Grants
from drivers.codex.handshake import SessionRequest
from drivers.codex.modes import (
    answers_of,
    choices_of,
    collaboration_mode,
    question_texts,
    questions_of,
    sandbox_of,
)
from drivers.contract.agent_specs import SessionPermissions, SessionSpec
from drivers.contract.driver_info import ToolGrant

TOOLS = tuple(ToolGrant(name) for name in ("shell", "apply_patch", "view_image", "web_search"))


def grants(mode: str | None, *ruled: str, trusted: bool = False, confined: bool = False) -> Grants:
    tools = [ToolGrant(tool.name, trusted) for tool in TOOLS]
    sandbox = sandbox_of(mode or "ask", "default")
    return Grants.of(tools, sandbox, ("/work",), confined=confined, mode=mode, ruled=lambda tool: tool in ruled)


@pytest.mark.parametrize(
    ("mode", "policy", "sandbox"),
    [
        ("workspace", "on-request", "workspace-write"),
        ("read-only", "on-request", "read-only"),
        ("plan", "on-request", "read-only"),
        ("full-access", "never", "danger-full-access"),
        (None, "untrusted", "workspace-write"),
    ],
)
def test_policy_and_sandbox(mode: str | None, policy: str, sandbox: str) -> None:
    found = grants(mode)
    assert found.preset == (policy, sandbox)
    features = found.config()["features"]
    assert features["view_image"] is (mode is not None) and ("web_search" in found.config()) is (mode is None)


@pytest.mark.parametrize("mode", ["workspace", "full-access"])
@pytest.mark.parametrize("tool", ["shell", "apply_patch"])
def test_each_call_asks_where_a_rule_may_match(mode: str, tool: str) -> None:
    found = grants(mode, tool)
    assert (found.mode, found.preset.policy) == (None, "untrusted")
    assert found.verdict("shell", {}, []) == found.verdict("apply_patch", {}, []) == "ask"


@pytest.mark.parametrize(("mode", "own", "policy"), [("workspace", None, "untrusted"), ("full-access", None, "untrusted"),
                                                     ("read-only", "read-only", "on-request")])  # fmt: skip
def test_no_patch_is_applied_without_the_tool_for_it(mode: str, own: str | None, policy: str) -> None:
    options = {"mode": mode}
    modes = frozenset({"workspace", "read-only", "plan", "full-access"})
    spec = SessionSpec(
        "codex", Path("/work"), {}, options=options, tools=(ToolGrant("shell"),), permissions=SessionPermissions(modes)
    )
    request = SessionRequest.of(spec)
    assert (request.grants.mode, request.thread["approvalPolicy"]) == (own, policy)
    assert request.grants.verdict("apply_patch", {}, [{"path": "a"}]) == "decline"
    assert request.in_mode("workspace") is None and request.modes == {"read-only", "plan"}


def test_a_tool_that_cannot_ask_is_missing_where_a_rule_may_match() -> None:
    assert grants("workspace", "web_search").config()["web_search"] == "disabled"


def test_what_the_cli_asks_about_is_asked_about_despite_trust() -> None:
    found = grants("workspace", trusted=True)
    assert found.verdict("shell", {}, []) == found.verdict("apply_patch", {}, [{"path": "a"}]) == "ask"
    assert found.verdict("other", {}, []) == found.verdict("shell", {"kind": "stdin"}, []) == "decline"


def test_the_gateways_sandbox_is_instead_of_the_clis() -> None:
    assert grants("workspace", confined=True).preset.sandbox == "danger-full-access"


@pytest.mark.parametrize(
    ("mode", "option", "sandbox"),
    [
        ("workspace", "default", "workspace-write"),
        ("workspace", "read-only", "read-only"),
        ("workspace", "danger-full-access", "workspace-write"),
        ("full-access", "workspace-write", "workspace-write"),
        ("read-only", "", "read-only"),
        ("plan", "workspace-write", "read-only"),
        ("ask", "default", "default"),
    ],
)
def test_the_narrower_sandbox_holds(mode: str, option: str, sandbox: str) -> None:
    assert sandbox_of(mode, option) == sandbox


def test_a_session_in_a_mode() -> None:
    spec = SessionSpec("codex", Path("/work"), {}, options={"mode": "workspace", "sandbox": "read-only"}, tools=TOOLS)
    thread = SessionRequest.of(spec).thread
    assert (thread["approvalPolicy"], thread["sandbox"], thread["approvalsReviewer"]) == ("on-request", "read-only", "user")


RULE = ["git", "push"]
AMENDMENT = {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": RULE}}


@pytest.mark.parametrize(
    ("tool", "params", "decisions"),
    [
        ("shell", {}, ["accept", "acceptForSession", "decline"]),
        ("shell", {"availableDecisions": ["accept", "cancel"]}, ["accept", "decline"]),
        ("shell", {"proposedExecpolicyAmendment": RULE}, ["accept", AMENDMENT, "acceptForSession", "decline"]),
        (
            "shell",
            {"proposedExecpolicyAmendment": RULE, "availableDecisions": ["accept", AMENDMENT, "cancel"]},
            ["accept", AMENDMENT, "decline"],
        ),
        ("shell", {"proposedExecpolicyAmendment": RULE, "availableDecisions": ["accept"]}, ["accept", "decline"]),
        ("apply_patch", {"proposedExecpolicyAmendment": RULE}, ["accept", "acceptForSession", "decline"]),
        ("shell", {"proposedExecpolicyAmendment": [1]}, ["accept", "acceptForSession", "decline"]),
    ],
)
def test_choices_are_the_decisions_that_the_cli_suggests(tool: str, params: dict[str, Any], decisions: list[Any]) -> None:
    found = choices_of(tool, params)
    assert [decision for _, decision in found.values()] == decisions
    assert list(found) == [choice.id for choice, _ in found.values()]
    decisions = [decision for decision in decisions if decision != AMENDMENT]
    assert [decision for _, decision in choices_of(tool, params, lasting=False).values()] == decisions


QUESTIONS = {
    "questions": [
        {"id": "a", "header": "H", "question": "A?", "options": [{"label": "x", "description": "y"}]},
        {"id": "b", "header": "H", "question": "B?", "options": None},
    ]
}


def test_questions_have_the_form_of_a_calls_input() -> None:
    first, second = questions_of(QUESTIONS)
    assert first == {"question": "A?", "header": "H", "options": [{"label": "x", "description": "y"}], "multiSelect": False}
    assert second["options"] == []


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ('{"answers": {"A?": "x", "B?": ["y", "z"]}}', {"a": ["x"], "b": ["y", "z"]}),
        ('{"answers": {"B?": "y"}}', {"b": ["y"]}),
        ("free text", {"a": ["free text"], "b": ["free text"]}),
    ],
)
def test_answers_are_text_or_json(text: str, answers: dict[str, list[str]]) -> None:
    assert answers_of(question_texts(QUESTIONS), text) == {
        "answers": {name: {"answers": given} for name, given in answers.items()}
    }


def test_the_plan_mode_is_a_collaboration_mode() -> None:
    assert collaboration_mode("plan", "m", "low")["collaborationMode"]["mode"] == "plan"
    assert collaboration_mode("workspace", "m", None)["collaborationMode"]["mode"] == "default"
    assert collaboration_mode(None, "m", None) == collaboration_mode("plan", None, None) == {}
