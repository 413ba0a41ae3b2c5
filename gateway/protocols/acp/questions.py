"""The agent's questions to the user, as a form or as permission requests, and the answers as the result of the call. Does no I/O.

Protocol page: https://agentclientprotocol.com/protocol/elicitation
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acp.schema import PermissionOption

from drivers.contract.agent import PermissionReply, Reply, ToolReply

DECLINED = "the user did not answer"
OTHER = "Other"
SKIP = "skip"
"""The id of the option of a permission request that answers nothing."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a call: its text, its options with their descriptions, and whether several may be chosen."""

    text: str
    header: str | None
    options: Mapping[str, str]
    multiple: bool


def questions_of(given: Any) -> list[Question]:
    """Return the questions in the input of a call (`Permissions.question_tools`)."""
    listed = given.get("questions") if isinstance(given, dict) else None
    return [_question(one) for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _question(given: Mapping[str, Any]) -> Question:
    options = [one for one in given.get("options") or () if isinstance(one, dict) and one.get("label")]
    described = {str(one["label"]): str(one.get("description") or "") for one in options}
    header = given.get("header")
    return Question(
        str(given.get("question") or ""), str(header) if header else None, described, given.get("multiSelect") is True
    )


def form(session_id: str, call_id: str, questions: list[Question]) -> dict[str, Any]:
    """Return the parameters of `elicitation/create`: a choice and a text of the user's own for each question."""
    single = len(questions) == 1
    properties: dict[str, Any] = {}
    for n, question in enumerate(questions):
        choices = [
            {"const": label, "title": label, **({"description": text} if text else {})}
            for label, text in question.options.items()
        ]
        field: dict[str, Any] = {"type": "string"}
        if choices:
            field = {"type": "array", "items": {"anyOf": choices}} if question.multiple else {"type": "string", "oneOf": choices}
        field |= {"title": question.header} if question.header else {}
        field |= {} if single else {"description": question.text}
        properties[f"question_{n}"] = field
        if choices:
            properties[f"question_{n}_other"] = {"type": "string", "title": OTHER, "description": "An answer of your own."}
    return {
        "mode": "form",
        "sessionId": session_id,
        "toolCallId": call_id,
        "message": questions[0].text if single else "The agent has some questions.",
        "requestedSchema": {"type": "object", "properties": properties},
    }


def reply_to_form(call_id: str, questions: list[Question], result: Mapping[str, Any]) -> Reply:
    """Return the reply by the client's result of a form. One that is not accepted declines the call."""
    content = result.get("content")
    if result.get("action") != "accept" or not isinstance(content, dict):
        return PermissionReply(call_id, "deny", DECLINED)
    answers: dict[str, Any] = {}
    for n, question in enumerate(questions):
        chosen, own = content.get(f"question_{n}"), content.get(f"question_{n}_other")
        picked = [str(one) for one in (chosen if isinstance(chosen, list) else [chosen]) if one not in (None, "")]
        if isinstance(own, str) and own.strip():
            # An answer of the user's own is beside several choices, and instead of a single one.
            picked = [*picked, own.strip()] if question.multiple else [own.strip()]
        if picked:
            answers[question.text] = picked if question.multiple else picked[0]
    return answered(call_id, answers)


def options_of(question: Question) -> list[PermissionOption]:
    """Return a question's options as those of a permission request, for clients without forms."""
    labels = [f"{label}: {text}" if text else label for label, text in question.options.items()]
    answers = [PermissionOption(option_id=f"answer:{n}", name=name, kind="allow_once") for n, name in enumerate(labels)]
    return [*answers, PermissionOption(option_id=SKIP, name="Skip", kind="reject_once")]


def chosen_label(question: Question, option_id: str | None) -> str | None:
    """Return the label of the option with this id; None where the question was skipped."""
    labels = {f"answer:{n}": label for n, label in enumerate(question.options)}
    return labels.get(option_id or "")


def answered(call_id: str, answers: Mapping[str, Any]) -> Reply:
    """Return the reply with the answers, by the text of each question. Without any the call is declined."""
    if not answers:
        return PermissionReply(call_id, "deny", DECLINED)
    return ToolReply(call_id, json.dumps({"answers": answers}, ensure_ascii=False))
