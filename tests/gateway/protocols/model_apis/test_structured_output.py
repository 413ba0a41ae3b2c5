"""JSON of a schema as an answer, and calls that are required, over the three vendors' APIs and over AAP."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.daemon import RunningGateway
from tests.support.requests import get_history

WriteScenario = Callable[..., str]
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
NAMES = {"type": "array", "items": {"type": "string"}}
APIS = ("chat", "responses", "messages")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


@pytest.fixture
def play(portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make a scenario with these turns that of the agent `script`."""

    def choose(*turns: Any) -> None:
        options = portico.gateway.agents.get("script").settings.options
        monkeypatch.setitem(options, "scenario", write_scenario(*turns))

    return choose


def schema_field(api: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    """The fields of a request for JSON of a schema; None is any object."""
    if schema is None:
        return {"response_format": {"type": "json_object"}} if api == "chat" else {"text": {"format": {"type": "json_object"}}}
    if api == "chat":
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}}
    if api == "responses":
        return {"text": {"format": {"type": "json_schema", "name": "answer", "schema": schema}}}
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def tools_field(api: str, choice: str, *names: str) -> dict[str, Any]:
    """The fields of a request with tools, of which one has to be called: any, or the one that is chosen."""
    described = [{"name": name, "description": "d", "parameters": {"type": "object"}} for name in names]
    if api == "chat":
        named: Any = {"type": "function", "function": {"name": choice}}
        return {
            "tools": [{"type": "function", "function": tool} for tool in described],
            "tool_choice": named if choice in names else choice,
        }
    if api == "responses":
        named = {"type": "function", "name": choice}
        tools = [{"type": "function", **tool} for tool in described]
        return {"tools": tools, "tool_choice": named if choice in names else choice}
    named = {"type": "tool", "name": choice} if choice in names else {"type": "any"}
    return {"tools": [{"name": name, "input_schema": {"type": "object"}} for name in names], "tool_choice": named}


def body(api: str, *texts: str, model: str = "script", **fields: Any) -> dict[str, Any]:
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts or ("hello",))]
    if api == "responses":
        return {"model": model, "input": messages, "store": False, **fields}
    return {"model": model, "messages": messages, **({"max_tokens": 99} if api == "messages" else {}), **fields}


async def ask(portico: RunningGateway, api: str, *texts: str, model: str = "script", **fields: Any) -> tuple[dict[str, Any], Any]:
    """What the answer is (text, refusal, calls, end), and its headers."""
    answer = await portico.client.post(PATHS[api], json=body(api, *texts, model=model, **fields))
    assert answer.status_code == 200, answer.text
    if fields.get("stream"):
        return streamed(api, answer.text), answer.headers
    found = answer.json()
    if api == "chat":
        message, end = found["choices"][0]["message"], found["choices"][0]["finish_reason"]
        calls = [call["function"]["name"] for call in message.get("tool_calls", ())]
        return {"text": message["content"], "refusal": message["refusal"], "calls": calls, "end": end}, answer.headers
    if api == "messages":
        return of_blocks(found["content"], found["stop_reason"]), answer.headers
    return of_items(found), answer.headers


def of_blocks(blocks: list[Any], end: str | None) -> dict[str, Any]:
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [block["name"] for block in blocks if block["type"] == "tool_use"]
    refused = end == "refusal"
    return {"text": None if refused or calls else text, "refusal": text if refused else None, "calls": calls, "end": end}


def of_items(response: dict[str, Any]) -> dict[str, Any]:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    text = "".join(part["text"] for part in parts if part["type"] == "output_text")
    refusal = "".join(part["refusal"] for part in parts if part["type"] == "refusal")
    calls = [item["name"] for item in response["output"] if item["type"] == "function_call"]
    return {"text": text or None, "refusal": refusal or None, "calls": calls, "end": response["status"]}


def streamed(api: str, text: str) -> dict[str, Any]:
    data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    events = [json.loads(one) for one in data if one != "[DONE]"]
    if api == "chat":
        choices = [event["choices"][0] for event in events if event["choices"]]
        texts = {name: "".join(choice["delta"].get(name) or "" for choice in choices) or None for name in ("content", "refusal")}
        calls = [call["function"]["name"] for choice in choices for call in choice["delta"].get("tool_calls", ())]
        return {"text": texts["content"], "refusal": texts["refusal"], "calls": calls, "end": choices[-1]["finish_reason"]}
    if api == "messages":
        opened = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        deltas = [event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"]
        end = next(event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta")
        return of_blocks([{"type": "text", "text": "".join(deltas)}, *(one for one in opened if one["type"] == "tool_use")], end)
    found = of_items(events[-1]["response"])
    deltas = [event["delta"] for event in events if event["type"] in ("response.output_text.delta", "response.refusal.delta")]
    assert "".join(deltas) == (found["text"] or found["refusal"] or "")
    return found


ENDS = {"chat": "stop", "responses": "completed", "messages": "end_turn"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_the_answer_is_the_json_of_the_schema_and_nothing_else(
    portico: RunningGateway, play: Callable[..., None], api: str, stream: bool
) -> None:
    play({"steps": [{"text": "I look it up."}, {"message_end": True}, {"text": 'Sure:\n```json\n{"n": 2}\n```\nAnything else?'}]})
    answer, headers = await ask(portico, api, "1+1?", stream=stream, **schema_field(api, NUMBER))
    assert answer == {"text": '{"n":2}', "refusal": None, "calls": [], "end": ENDS[api]}
    # The stored message is the value alone, too, and that of the user is its own.
    history = await get_history(portico.client, headers["x-portico-session"])
    assert [message["content"] for message in history] == ["1+1?", "I look it up.", '{"n":2}']


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_an_answer_that_does_not_match_is_asked_for_once_more(
    portico: RunningGateway, play: Callable[..., None], api: str, stream: bool
) -> None:
    play({"steps": [{"text": '["one", 2]'}]}, {"when": r"\$\[1\]: 2 is not of type", "steps": [{"text": '["one", "two"]'}]})
    answer, headers = await ask(portico, api, "names?", stream=stream, **schema_field(api, NAMES))
    assert answer == {"text": '["one","two"]', "refusal": None, "calls": [], "end": ENDS[api]}
    history = await get_history(portico.client, headers["x-portico-session"])
    assert [message["content"] for message in history] == ["names?", '["one","two"]']


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_an_answer_that_still_does_not_match_is_a_refusal_with_its_words(
    portico: RunningGateway, play: Callable[..., None], api: str, stream: bool
) -> None:
    play({"steps": [{"text": "Let me think."}]}, {"steps": [{"text": "I cannot count."}]})
    answer, _ = await ask(portico, api, stream=stream, **schema_field(api, NUMBER))
    refusal = "I cannot count.\n\n[the answer does not match the JSON schema: it is not JSON]"
    end = "refusal" if api == "messages" else ENDS[api]
    assert answer == {"text": None, "refusal": refusal, "calls": [], "end": end}


async def test_any_object_will_do_for_json_object(portico: RunningGateway, play: Callable[..., None]) -> None:
    play({"steps": [{"text": "[1]"}]}, {"steps": [{"text": '{"a": [1]}'}]})
    for api in ("chat", "responses"):
        answer, _ = await ask(portico, api, **schema_field(api, None))
        assert answer["text"] == '{"a":[1]}'


@pytest.mark.parametrize("api", APIS)
async def test_a_conversation_goes_on_in_its_session_without_the_schema(
    portico: RunningGateway, play: Callable[..., None], api: str
) -> None:
    play({"steps": [{"text": '{"n": 1}'}]}, {"steps": [{"text": "As text: {prompt}"}]})
    first, headers = await ask(portico, api, "one", **schema_field(api, NUMBER))
    assert first["text"] == '{"n":1}'
    # As clients send it that have parsed it.
    second, after = await ask(portico, api, "one", '{ "n": 1 }', "two")
    assert after["x-portico-session"] == headers["x-portico-session"]
    assert second["text"] == "As text: two"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "objekt"}, "'objekt' is not valid"),
        ({"$ref": "https://example.com/schema.json"}, "put what it refers to into $defs"),
        ({"properties": {"a": {"items": {"$ref": "other.json#/a"}}}}, "'other.json#/a' is not in the schema"),
        ({"description": "x" * 300_000}, "longer than 256 KiB"),
    ],
)
async def test_a_schema_that_is_none_is_refused_by_the_name_of_its_field(
    portico: RunningGateway, schema: dict[str, Any], text: str
) -> None:
    fields = {
        "chat": "response_format.json_schema.schema",
        "responses": "text.format.schema",
        "messages": "output_config.format.schema",
    }
    for api, field in fields.items():
        answer = await portico.client.post(PATHS[api], json=body(api, **schema_field(api, schema)))
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert message.startswith(f"{field}: ") and text in message


async def test_forms_that_are_none_are_refused(portico: RunningGateway) -> None:
    for api, fields in (
        ("chat", {"response_format": {"type": "xml"}}),
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}),
        ("responses", {"text": {"format": {"type": "grammar"}}}),
        ("messages", {"output_config": {"format": {"type": "json_schema", "schema": "x"}}}),
        ("messages", {"output_format": {"type": "json_schema"}}),
        ("chat", {"tool_choice": "required"}),
        ("chat", tools_field("chat", "a", "a") | {"tool_choice": {"type": "function", "function": {"name": "b"}}}),
        ("responses", tools_field("responses", "a", "a") | {"tool_choice": {"type": "function", "name": "b"}}),
        ("messages", tools_field("messages", "a", "a") | {"tool_choice": {"type": "tool", "name": "b"}}),
        ("messages", tools_field("messages", "a", "a") | {"tool_choice": {"type": "some"}}),
    ):
        answer = await portico.client.post(PATHS[api], json=body(api, **fields))
        assert answer.status_code == 400, fields
        assert answer.json()["error"]["message"].split(":")[0].split(".")[0] in fields


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", "weather"])
@pytest.mark.parametrize("api", APIS)
async def test_a_call_that_is_required_is_asked_for_once_more(
    portico: RunningGateway, play: Callable[..., None], api: str, choice: str, stream: bool
) -> None:
    call = {"app_tool": {"id": "c1", "name": "weather", "input": {"city": "Rome"}}}
    play({"steps": [{"text": "I know the weather."}]}, {"when": "You have not called a tool", "steps": [call, {"text": "Done."}]})
    answer, headers = await ask(portico, api, "weather?", stream=stream, **tools_field(api, choice, "weather", "time"))
    assert answer["calls"] == ["weather"] and not answer["text"]
    assert "tool_choice" not in headers.get("x-portico-ignored", "")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_a_call_that_the_agent_does_not_make_is_named_in_the_header(
    portico: RunningGateway, play: Callable[..., None], api: str, stream: bool
) -> None:
    play({"steps": [{"text": "No."}]}, {"steps": [{"text": "Still no."}]})
    answer, headers = await ask(portico, api, stream=stream, **tools_field(api, "required", "weather"))
    assert answer["text"] == "Still no." and answer["calls"] == []
    assert "tool_choice" in headers["x-portico-ignored"].split(", ")


async def test_a_call_is_required_again_after_a_result(portico: RunningGateway, play: Callable[..., None]) -> None:
    call = {"app_tool": {"id": "c{turn}", "name": "weather", "input": {}}}
    play({"steps": [call, {"text": "It rains."}]}, {"steps": [{"app_tool": {"id": "d1", "name": "final", "input": {}}}]})
    fields = tools_field("chat", "required", "weather", "final")
    asked = body("chat", "weather?", **fields)
    first = (await portico.client.post(PATHS["chat"], json=asked)).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "rain"}
    talk = [*asked["messages"], first, result]
    second = (await portico.client.post(PATHS["chat"], json={"model": "script", "messages": talk, **fields})).json()
    assert [call["function"]["name"] for call in second["choices"][0]["message"]["tool_calls"]] == ["final"]


async def test_tools_for_an_agent_that_takes_none_are_named_in_the_header(portico: RunningGateway) -> None:
    for api in APIS:
        answer, headers = await ask(portico, api, "hi", model="echo", **tools_field(api, "required", "weather"))
        assert answer["text"] == "hi"
        assert {"tools", "tool_choice"} <= {*headers["x-portico-ignored"].split(", ")}


async def test_a_stored_response_is_read_again_as_it_was(portico: RunningGateway, play: Callable[..., None]) -> None:
    play({"steps": [{"text": 'Here: {"n": 3}'}]})
    request = {"model": "script", "input": "3?", **schema_field("responses", NUMBER)}
    made = (await portico.client.post("/v1/responses", json=request)).json()
    assert made["output"][-1]["content"][0]["text"] == '{"n":3}'
    again = (await portico.client.get(f"/v1/responses/{made['id']}")).json()
    assert again["output"] == made["output"] and again["text"]["format"]["schema"] == NUMBER


# -- over AAP -------------------------------------------------------------------------------------------------------------


async def aap_turn(portico: RunningGateway, session: str, text: str, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": text}
    answer = await portico.client.post(f"/aap/v3/sessions/{session}/turns", json={"messages": [message], **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_turn_of_aap_has_the_value_and_the_next_one_is_text(portico: RunningGateway, play: Callable[..., None]) -> None:
    play({"steps": [{"text": 'It is {"n": 7}.'}]}, {"steps": [{"text": "{prompt}"}]}, {"steps": [{"text": "no"}]})
    made = await portico.client.post("/aap/v3/sessions", json={"agent": {"name": "script"}})
    session = made.json()["sessionId"]
    answer = await aap_turn(portico, session, "7?", output_schema=NUMBER)
    assert answer["x-portico"]["output"] == {"n": 7}
    assert answer["messages"][-1]["content"] == '{"n":7}'
    answer = await aap_turn(portico, session, "plain")
    assert answer["messages"][-1]["content"] == "plain" and "output" not in answer.get("x-portico", {})
    answer = await aap_turn(portico, session, "8?", output_schema=NUMBER)
    assert answer["stopReason"] == "end_turn"
    assert answer["x-portico"]["outputError"] == "the answer does not match the JSON schema: it is not JSON"


async def test_a_stream_of_aap_has_the_value_at_its_end(portico: RunningGateway, play: Callable[..., None]) -> None:
    play({"steps": [{"text": "wrong"}]}, {"steps": [{"text": '["a"]'}]})
    request = {"agent": {"name": "script"}, "messages": [{"role": "user", "content": "a?"}], "stream": "delta"}
    answer = await portico.client.put("/session", json={**request, "output_schema": NAMES})
    frames = answer.text.split("\n\n")
    assert 'data: {"delta":"[\\"a\\"]"}' in answer.text and "wrong" not in answer.text
    stop = next(frame for frame in frames if frame.startswith("event: turn_stop"))
    assert json.loads(stop.split("\n")[1].removeprefix("data: "))["x-portico"]["output"] == ["a"]


async def test_a_wrong_schema_of_a_turn_changes_nothing(portico: RunningGateway) -> None:
    request = {"agent": {"name": "echo"}, "messages": [{"role": "user", "content": "a?"}], "output_schema": {"type": 5}}
    before = len((await portico.client.get("/aap/v3/sessions")).json()["sessions"])
    answer = await portico.client.put("/session", json=request)
    assert answer.status_code == 400 and answer.json()["error"].startswith("output_schema: ")
    assert len((await portico.client.get("/aap/v3/sessions")).json()["sessions"]) == before
