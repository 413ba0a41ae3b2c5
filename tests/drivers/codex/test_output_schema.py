"""The JSON schemas that codex asks its model for."""

from __future__ import annotations

from typing import Any

import pytest

from drivers.codex import CodexDriver
from drivers.contract.agent import Prompt
from tests.drivers.codex.cli import Server

STRICT: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "schema",
    [
        STRICT,
        {**STRICT, "properties": {"n": {"type": "array", "items": STRICT}}},
        {**STRICT, "properties": {"n": {"anyOf": [STRICT, {"type": "null"}]}}, "$defs": {"a": STRICT}},
        {**STRICT, "properties": {}, "required": []},
    ],
)
def test_strict_schemas_go_with_the_prompt(schema: dict[str, Any]) -> None:
    assert CodexDriver().takes_schema(schema) == "with_prompt"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "array", "items": STRICT},
        {**STRICT, "required": []},
        {**STRICT, "additionalProperties": True},
        {**STRICT, "allOf": [STRICT]},
        {**STRICT, "properties": {"n": {"type": "object", "properties": {"m": {}}}}},
        {**STRICT, "properties": {"n": {"type": "array", "items": {"type": "object"}}}},
        {**STRICT, "$defs": {"a": {"type": "object"}}},
        {**STRICT, "properties": {"n": {"anyOf": [{"oneOf": []}]}}},
    ],
)
def test_others_are_left_to_the_prompt(schema: dict[str, Any]) -> None:
    assert CodexDriver().takes_schema(schema) is None


def test_a_turn_has_the_schema_of_its_prompt() -> None:
    server = Server("shell")
    for turn, schema in (("one", STRICT), ("two", None)):
        server.codec.prompt(Prompt("go", output_schema=schema))
        [request] = server.written()
        assert request["params"].get("outputSchema") == schema
        server.send({"id": request["id"], "result": {"turn": {"id": turn}}})
        server.send({"method": "turn/started", "params": {"threadId": "t", "turn": {"id": turn}}})
        server.complete(turn)
