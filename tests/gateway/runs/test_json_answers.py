"""The JSON value of a schema in an answer, and schemas that cannot be used."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.runs.json_answers import find_value, schema_problem

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"n": 1}', {"n": 1}),
        (' \n{"n": 1}\n', {"n": 1}),
        ('```json\n{"n": 1}\n```', {"n": 1}),
        ('Either\n```\n{"n": 1}\n```\nor\n```json\n{"n": 2}\n```', {"n": 2}),
        ('The answer {"n": 3} is right.', {"n": 3}),
        ('{"m": 1}\n```\n{"n": 4}\n```', {"n": 4}),
    ],
)
def test_the_value_is_found(text: str, value: Any) -> None:
    assert find_value(text, NUMBER) == (value, None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it is not JSON"),
        ("{n: 1}", "it is not JSON"),
        ('{"n": NaN}', "it is not JSON"),
        ('{"n": 1', "it is not JSON"),
        ("[1]", "$: [1] is not of type 'object'"),
        ('{"n": "1"}', "$.n: '1' is not of type 'integer'"),
        ("{}", "$: 'n' is a required property"),
        ("[" * 100_000, "it is not JSON"),
        ("{" * 100_000 + "}" * 100_000, "it is not JSON"),
    ],
)
def test_what_is_wrong_is_told(text: str, problem: str) -> None:
    assert find_value(text, NUMBER) == (None, problem)


def test_other_values_than_objects() -> None:
    assert find_value("Names: [1, 2]", {"type": "array"}) == ([1, 2], None)
    assert find_value("3", {"type": "integer"}) == (3, None)
    assert find_value("null", {}) == (None, None)


def test_references_within_the_schema() -> None:
    schema = {"$defs": {"a": {"type": "string"}}, "type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}}
    assert schema_problem(schema) is None
    assert find_value('{"x": "y"}', schema) == ({"x": "y"}, None)
    assert find_value('{"x": 1}', schema)[1] == "$.x: 1 is not of type 'string'"
    missing = {"properties": {"x": {"$ref": "#/$defs/b"}}}
    assert (find_value('{"x": 1}', missing)[1] or "").startswith("the schema has no ")


def test_regular_expressions_are_not_run() -> None:
    slow = {"type": "object", "patternProperties": {"^(a+)+$": {"type": "integer"}}, "additionalProperties": False}
    began = time.monotonic()
    for schema in (slow, {"properties": {"s": {"type": "string", "pattern": "^(a+)+$"}}}):
        assert schema_problem(schema) is None
        assert find_value('{"s": "' + "a" * 40 + '!"}', schema)[1] is None
    assert time.monotonic() - began < 5
    # They are names of members here.
    named = {"properties": {"pattern": {"type": "integer"}, "patternProperties": {"const": {"pattern": "x"}}}}
    assert find_value('{"pattern": "x"}', named)[1] == "$.pattern: 'x' is not of type 'integer'"
    assert find_value('{"patternProperties": {}}', named)[1] is not None


def test_schemas_that_cannot_be_used() -> None:
    assert schema_problem({"type": "objekt"}) is not None
    assert "not in the schema" in (schema_problem({"$ref": "http://127.0.0.1:1/x"}) or "")
    assert "not in the schema" in (schema_problem({"allOf": [{"$ref": "file:///etc/passwd"}]}) or "")
    assert schema_problem({"const": {"$ref": "http://127.0.0.1:1/x"}}) is None
    nested: dict[str, Any] = {}
    for _ in range(20):
        nested = {"properties": {"a": nested}}
    assert schema_problem(nested) is None
    for _ in range(5000):
        nested = {"properties": {"a": nested}}
    assert schema_problem(nested) is not None


def test_a_schema_that_refers_to_itself() -> None:
    tree = {"$defs": {"t": {"type": "object", "properties": {"c": {"$ref": "#/$defs/t"}}}}, "$ref": "#/$defs/t"}
    assert find_value('{"c": {"c": {}}}', tree) == ({"c": {"c": {}}}, None)
    loop = {"$ref": "#"}
    assert find_value("1", loop)[1] is not None
