"""Finds the JSON value of a schema in an agent's answer, and says what is wrong with an answer or a schema. Pure.

A regular expression of a client may take for ever, and no other Python code runs meanwhile: `pattern` and `patternProperties` are
not checked. No schema is loaded from an address that a schema names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import exceptions
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from pydantic_core import from_json, to_json
from referencing import Registry
from referencing.exceptions import Unresolvable

MAX_SCHEMA = 256 * 1024
"""Bytes of a schema as JSON. OpenAI's API takes 120,000 characters of names and values."""
MAX_SHOWN = 300
"""Characters of an error."""
_OF_NAMES = frozenset(("properties", "$defs", "definitions", "dependentSchemas"))
"""Members of a schema whose members are schemas by names of the client."""
_VALUES = frozenset(("const", "enum", "default", "examples"))
"""Members of a schema that are no schemas."""
_FENCE = "```"


def schema_problem(schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a JSON schema; None if nothing is."""
    try:
        if len(to_json(schema)) > MAX_SCHEMA:
            return f"it is longer than {MAX_SCHEMA // 1024} KiB"
        if outside := next((ref for ref in _references(schema) if not ref.startswith("#")), None):
            return f"$ref {outside[:80]!r} is not in the schema; put what it refers to into $defs"
        validator_for(schema, Draft202012Validator).check_schema(dict(schema))
    except exceptions.SchemaError as error:
        return _described(error)
    except (RecursionError, ValueError):
        return "it is nested too deeply"
    return None


def find_value(text: str, schema: Mapping[str, Any]) -> tuple[Any, str | None]:
    """Return the JSON value in an answer, and what is wrong with it; None if it matches the schema.

    The answer may be the value itself, or have it in a block of Markdown, or between other text.
    """
    validator = _validator(schema)
    problem, parsed = "it is not JSON", False
    for candidate in _candidates(text):
        try:
            value = from_json(candidate, allow_inf_nan=False)
        except ValueError:
            continue
        wrong = _problem(validator, value)
        if wrong is None:
            return value, None
        if not parsed:
            problem, parsed = wrong, True
    return None, problem


def _candidates(text: str) -> Iterator[str]:
    yield text
    # The first line of a block names its language.
    yield from (block.partition("\n")[2] for block in reversed(text.split(_FENCE)[1::2][-10:]))
    for opening, closing in (("{", "}"), ("[", "]")):
        first, last = text.find(opening), text.rfind(closing)
        if 0 <= first < last:
            yield text[first : last + 1]


def _validator(schema: Mapping[str, Any]) -> Validator:
    kind = validator_for(schema, Draft202012Validator)
    return kind(_without_expressions(schema), registry=Registry())


def _problem(validator: Validator, value: Any) -> str | None:
    try:
        error = exceptions.best_match(validator.iter_errors(value))
    except Unresolvable as unresolved:
        return f"the schema has no {str(unresolved)[:MAX_SHOWN]}"
    except RecursionError:
        return "it is nested too deeply"
    return None if error is None else _described(error)


def _described(error: exceptions.ValidationError | exceptions.SchemaError) -> str:
    return f"{error.json_path}: {error.message}"[:MAX_SHOWN]


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for one in schema:
            yield from _references(one)
    elif isinstance(schema, Mapping):
        for name, value in schema.items():
            if name in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            elif name in _OF_NAMES and isinstance(value, Mapping):
                yield from _references(list(value.values()))
            elif name not in _VALUES:
                yield from _references(value)


def _without_expressions(schema: Any) -> Any:
    """The schema without its regular expressions, and without what depends on those of names."""
    if isinstance(schema, list):
        return [_without_expressions(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    dropped = {"pattern", "patternProperties"}
    if "patternProperties" in schema:
        dropped |= {"additionalProperties", "unevaluatedProperties"}
    found: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _OF_NAMES and isinstance(value, Mapping):
            found[name] = {key: _without_expressions(one) for key, one in value.items()}
        elif name in _VALUES:
            found[name] = value
        elif name not in dropped:
            found[name] = _without_expressions(value)
    return found
