"""JSON of a schema by the real codex: a strict one goes to the model's API, another one into the prompt."""

from __future__ import annotations

from typing import Any

from tests.model_server.openai import OpenAIServer
from tests.support.daemon import RunningGateway

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


async def respond(portico: RunningGateway, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    form = {"type": "json_schema", "name": "n", "schema": schema}
    answer = await portico.client.post("/v1/responses", json={"model": "codex", "input": text, "text": {"format": form}})
    assert answer.status_code == 200, answer.text
    part: dict[str, Any] = answer.json()["output"][-1]["content"][0]
    return part


async def test_a_strict_schema_goes_to_the_api_of_the_model(portico: RunningGateway, model: OpenAIServer) -> None:
    part = await respond(portico, '[[echo:{"n": 2}]]', NUMBER)
    assert part["text"] == '{"n":2}'
    form = model.bodies()[-1]["text"]["format"]
    assert (form["type"], form["schema"], form["strict"]) == ("json_schema", NUMBER, True)


async def test_another_schema_stands_in_the_prompt(portico: RunningGateway, model: OpenAIServer) -> None:
    part = await respond(portico, "which?", {"type": "object", "minProperties": 9})
    assert "does not match the JSON schema" in part["refusal"]
    asked = model.bodies()[-1]
    assert "format" not in asked["text"] and "minProperties" in str(asked["input"])
