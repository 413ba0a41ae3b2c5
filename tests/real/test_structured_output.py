"""JSON of a schema by the real claude, whose model answers by a call of the CLI's own tool."""

from __future__ import annotations

from typing import Any

from tests.real.models import Model
from tests.support.daemon import RunningGateway

NUMBER: dict[str, Any] = {
    "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False,
}  # fmt: skip


def schemas(body: dict[str, Any]) -> list[Any]:
    """The schemas of the tool for answers in a request of the CLI."""
    return [tool["input_schema"] for tool in body["tools"] if tool["name"] == "StructuredOutput"]


async def chat(portico: RunningGateway, *messages: str, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    talk = [{"role": roles[n % 2], "content": text} for n, text in enumerate(messages)]
    answer = await portico.client.post("/v1/chat/completions", json={"model": "claude", "messages": talk, **fields}, timeout=60)
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


async def test_the_model_answers_by_the_tool_of_the_cli(portico: RunningGateway, model: Model) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": NUMBER}}
    message = await chat(portico, "[[structured]]", response_format=form)
    assert message == {"role": "assistant", "content": '{"n":2}', "refusal": None}
    assert schemas(model.last_request()) == [NUMBER]
    # Without a schema the CLI is restarted, and goes on with its own session.
    message = await chat(portico, "[[structured]]", '{"n":2}', "[[plain]] and now?")
    assert message["content"] == "Hello from the model, this is plain text."
    assert schemas(model.last_request()) == []


async def test_other_schemas_stand_in_the_prompt(portico: RunningGateway, model: Model) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array", "maxItems": 3}}}
    message = await chat(portico, "which?", response_format=form)
    assert message["content"] is None and "does not match the JSON schema" in message["refusal"]
    assert schemas(model.last_request()) == [] and '"maxItems":3' in str(model.last_request()["messages"])
