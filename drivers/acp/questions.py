"""The agent's questions to the user (`elicitation/create` with a form), as the questions of a tool call, and the answers as the
form's content. No state.

Protocol page: https://agentclientprotocol.com/protocol/elicitation
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drivers.codecs.question_answers import answers_by_question
from drivers.contract.messages import Content

QUESTION_TOOL = "ask_user"
"""The tool whose calls are the agent's questions."""
OWN_ANSWER = ("_custom", "_other")
"""The ends of the names of fields for an answer of the user's own beside the choices of another field: claude-agent-acp 0.101."""
DECLINED, CANCELLED = {"action": "decline"}, {"action": "cancel"}


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a form, as a question."""

    name: str
    """Its name in the form."""
    type: str
    """The type of its value, of JSON Schema."""
    text: str
    """The question."""
    header: str | None = None
    """A short title."""
    options: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    """The choices by their labels: the value, and a description."""
    multiple: bool = False
    """Whether several may be chosen."""
    own: str | None = None
    """The field for an answer of the user's own, if there is one."""


def fields_of(params: Mapping[str, Any]) -> list[FormField]:
    """Return the questions of a form. Raises ValueError for a request that is none, or that asks nothing."""
    if params.get("mode", "form") != "form":
        raise ValueError("only forms are supported")
    properties: dict[str, Any] = params["requestedSchema"]["properties"]
    companions = {name: own for name in properties if (own := _companion(name, properties)) is not None}
    asked = {name: schema for name, schema in properties.items() if name not in companions.values()}
    found: list[FormField] = []
    for name, schema in asked.items():
        text = str(schema.get("description") or "") or (str(params["message"]) if len(asked) == 1 else "")
        title = schema.get("title")
        text = text or str(title or name)
        if any(text == other.text for other in found):
            text = f"{text} ({name})"
        items = schema.get("items") if schema.get("type") == "array" else None
        kind, own = str(schema.get("type") or "string"), companions.get(name)
        options = _options(items if isinstance(items, dict) else schema)
        found.append(FormField(name, kind, text, str(title) if title else None, options, items is not None, own))
    if not found:
        raise ValueError("a form without fields")
    return found


def questions_of(fields: list[FormField]) -> list[dict[str, Any]]:
    """Return the questions as a call's input has them (`Permissions.question_tools`)."""
    return [
        {
            "question": one.text,
            "header": one.header,
            "options": [{"label": label, "description": text} for label, (_, text) in one.options.items()],
            "multiSelect": one.multiple,
        }
        for one in fields
    ]


def response_of(fields: list[FormField], answer: Content) -> dict[str, Any]:
    """Return the result of the request by the content of the client's reply."""
    given = answers_by_question(answer, [one.text for one in fields])
    content: dict[str, Any] = {}
    for one in fields:
        value = given.get(one.text)
        chosen = [part for part in (value if isinstance(value, list) else [value]) if part not in (None, "")]
        known = [one.options[str(part)][0] for part in chosen if str(part) in one.options]
        others = [str(part) for part in chosen if str(part) not in one.options]
        if one.options:
            if known:
                content[one.name] = known if one.multiple else known[0]
            if others and one.own is not None:
                content[one.own] = ", ".join(others)
        elif one.multiple:
            content[one.name] = others
        elif others:
            content[one.name] = _typed(one.type, others[0])
    return {"action": "accept", "content": content} if content else DECLINED


def _companion(name: str, properties: Mapping[str, Any]) -> str | None:
    return next((name + end for end in OWN_ANSWER if name + end in properties and _options(_of(properties[name]))), None)


def _of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    items = schema.get("items")
    return items if isinstance(items, dict) else schema


def _options(schema: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    if schema.get("type") == "boolean":
        return {"Yes": (True, ""), "No": (False, "")}
    titled = schema.get("oneOf") or schema.get("anyOf")
    if isinstance(titled, list):
        return {str(one.get("title") or one["const"]): (one["const"], str(one.get("description") or "")) for one in titled}
    values = schema.get("enum")
    return {str(value): (value, "") for value in values} if isinstance(values, list) else {}


def _typed(kind: str, text: str) -> Any:
    try:
        return int(text) if kind == "integer" else float(text) if kind == "number" else text
    except ValueError:
        # The agent checks the content against its own schema.
        return text
