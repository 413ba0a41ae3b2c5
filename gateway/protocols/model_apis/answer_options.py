"""What the vendors' requests say about the form of an answer: JSON of a schema, and the tools that have to be called. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import BadRequest
from gateway.runs.answer_format import AnswerFormat

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
"""The schema of `json_object`."""


def schema_of(form: Any, where: str, holder: str | None = None) -> tuple[Mapping[str, Any] | None, str]:
    """Return the schema of a field such as `response_format`, None for text, and the name of the field that has it.

    `where` is the name of the field. `holder` is the member that has `schema`, if it is not a member of the field itself.
    """
    if form is None:
        return None, where
    if not isinstance(form, Mapping):
        raise BadRequest(f"{where}: must be an object with a type: text, json_object or json_schema")
    kind = form.get("type")
    if kind == "text":
        return None, where
    if kind == "json_object":
        return ANY_OBJECT, where
    if kind != "json_schema":
        raise BadRequest(f"{where}.type: {str(kind)[:50]!r} is not supported; send text, json_object or json_schema")
    at, found = f"{where}.{holder}.schema" if holder else f"{where}.schema", form.get(holder) if holder else form
    schema = found.get("schema") if isinstance(found, Mapping) else None
    if not isinstance(schema, Mapping):
        raise BadRequest(f"{at}: missing; it is the JSON schema of the answer, an object")
    return schema, at


def answer_format(schema: Mapping[str, Any] | None, tools: Sequence[str]) -> AnswerFormat | None:
    """Return the format of an answer, None for any text."""
    return AnswerFormat(schema, tuple(tools)) if schema is not None or tools else None


def required_tools(chosen: Sequence[str] | None, names: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the tools of which one has to be called: those that are `chosen`, or with None any of them."""
    if chosen is None:
        chosen = names
    if not names:
        raise BadRequest(f"{where}: a call is required, and there are no tools; send `tools`")
    if unknown := [name for name in chosen if name not in names]:
        raise BadRequest(f"{where}: there is no tool {unknown[0][:64]!r} in `tools`")
    return tuple(chosen)
