"""The modes of codex itself, by its sandboxes, and the answers that the CLI suggests with its requests for approval. No state.

Measured with codex 0.169.0. With the approval policy `on-request` the CLI runs commands and patches in its sandbox without
asking, and asks about those that are to leave it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from drivers.codecs.question_answers import answers_by_question
from drivers.contract.driver_info import ASK_MODE, PermissionMode
from drivers.contract.events import PermissionChoice
from drivers.contract.messages import Content

WORKSPACE, READ_ONLY, FULL_ACCESS, PLAN = "workspace", "read-only", "full-access", "plan"
MODES = (
    PermissionMode(WORKSPACE, "Workspace", "Reads, and writes in the session's folders; asks about all else."),
    PermissionMode(READ_ONLY, "Read-only", "Reads; asks about changes, and about commands that need more."),
    PermissionMode(PLAN, "Plan", "Reads, asks questions and proposes a plan, in the read-only sandbox."),
    PermissionMode(FULL_ACCESS, "Full access", "Asks about nothing, and has no sandbox.", unrestricted=True),
)
SANDBOXES = {READ_ONLY: "read-only", WORKSPACE: "workspace-write", FULL_ACCESS: "danger-full-access"}
"""The CLI's sandbox of each mode, the narrowest first. That of the mode `plan` is `read-only`."""
QUESTION_TOOL = "request_user_input"
"""The CLI's tool for questions to the user, which it has in its plan mode."""
PLAN_TOOL = "implement_plan"
"""The approval of a plan, as a call. The CLI has no such tool: its own interface asks when a turn has ended with a plan."""
IMPLEMENT = "Implement the plan."
"""The prompt that the CLI's own interface sends when the plan is approved."""
APPROVED = "The user has approved the plan."
STILL_PLANNING = "the user wants to go on planning"
KEEP_PLANNING = "keep_planning"
_AFTER_PLAN = {
    WORKSPACE: "Yes, implement this plan",
    READ_ONLY: "Yes, and approve each change",
    FULL_ACCESS: "Yes, and do not ask about anything",
}


def sandbox_of(mode: str, option: str) -> str:
    """Return the value of the option `sandbox` for a session in this mode: the narrower one of the mode's and the given."""
    mode = READ_ONLY if mode == PLAN else mode
    if mode == ASK_MODE or mode not in SANDBOXES:
        return option
    order = list(SANDBOXES.values())
    return min((SANDBOXES[mode], option if option in order else order[-1]), key=order.index)


def collaboration_mode(mode: str | None, model: str | None, effort: str | None) -> dict[str, Any]:
    """Return the parameters of `turn/start` for a mode: the CLI has its plan mode apart from approval and sandbox.

    A thread keeps it, so that a session in another mode of the CLI's leaves it. `developer_instructions` null are the CLI's own.
    """
    if mode is None or model is None:
        return {}
    settings = {"model": model, "reasoning_effort": effort, "developer_instructions": None}
    return {"collaborationMode": {"mode": "plan" if mode == PLAN else "default", "settings": settings}}


def plan_choices(modes: frozenset[str]) -> tuple[PermissionChoice, ...]:
    """Return the answers to a plan: those of `modes` in which it can be carried out, and a rejection."""
    approvals = (
        PermissionChoice(id=f"mode:{mode}", name=_AFTER_PLAN[mode], kind="allow_always" if mode == FULL_ACCESS else "allow_once")
        for mode in modes_after_plan(modes)
    )
    return (*approvals, PermissionChoice(id=KEEP_PLANNING, name="No, keep planning", kind="reject_once"))


def modes_after_plan(modes: frozenset[str]) -> list[str]:
    """Return those of `modes` in which a plan can be carried out. There is none where the configuration locks plan mode."""
    return [mode for mode in _AFTER_PLAN if mode in modes]


def mode_after_plan(choice: str | None, modes: frozenset[str]) -> str:
    """Return the mode in which an approved plan is carried out, by the id of the choice: the first of `modes_after_plan`, which
    must not be empty, without a choice of one of them."""
    mode, permitted = (choice or "").removeprefix("mode:"), modes_after_plan(modes)
    return mode if mode in permitted else permitted[0]


def questions_of(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the questions of a request, in the form of a call's input (`Permissions.question_tools`)."""
    return [
        {
            "question": question["question"],
            "header": question.get("header"),
            "options": [
                {"label": option["label"], "description": option.get("description")} for option in question.get("options") or ()
            ],
            "multiSelect": False,
        }
        for question in params["questions"]
    ]


def question_texts(params: Mapping[str, Any]) -> dict[str, str]:
    """Return the questions of a request by their ids. A request with a question that has no id cannot be answered: KeyError."""
    return {question["id"]: question["question"] for question in params["questions"]}


def answers_of(questions: Mapping[str, str], content: Content) -> dict[str, Any]:
    """Return the result of a request for answers to these questions, by the content of the client's reply."""
    given = answers_by_question(content, questions.values())
    found = {
        question_id: {"answers": [str(one) for one in (answer if isinstance(answer, list) else [answer])]}
        for question_id, question in questions.items()
        if (answer := given.get(question)) not in (None, "")
    }
    return {"answers": found}


def choices_of(tool: str, params: Mapping[str, Any], *, lasting: bool = True) -> dict[str, tuple[PermissionChoice, Any]]:
    """Return the choices for a request for approval, with the CLI's decision for each, by their ids. There are no others.

    Without `lasting` there is none that adds a rule to a file of the CLI, which applies to other sessions too.
    """
    decisions: dict[str, tuple[PermissionChoice, Any]] = {}

    def add(choice_id: str, name: str, kind: Any, decision: Any) -> None:
        decisions[choice_id] = PermissionChoice(id=choice_id, name=name, kind=kind), decision

    available = params.get("availableDecisions")
    named = [one for one in available if isinstance(one, str)] if isinstance(available, list) else ["acceptForSession"]
    add("accept", "Allow", "allow_once", "accept")
    rule = params.get("proposedExecpolicyAmendment")
    if lasting and tool == "shell" and isinstance(rule, list) and rule and all(isinstance(word, str) for word in rule):
        decision = {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": rule}}
        if not isinstance(available, list) or decision in available:
            add("rule", f"Always allow commands that begin with {shlex.join(rule)}", "allow_always", decision)
    if "acceptForSession" in named:
        what = "this command" if tool == "shell" else "changes of these files"
        add("session", f"Allow {what} in this session", "allow_always", "acceptForSession")
    add("decline", "Reject", "reject_once", "decline")
    return decisions
