"""JSON of a schema as an answer, and calls that are required, over the three vendors' APIs and over AAP."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.gateway.protocols.model_apis.vendor_apis import APIS, CHAT, MESSAGES, RESPONSES, ask, post, results, tools
from tests.support.aap_client import AapClient
from tests.support.daemon import RunningGateway
from tests.support.requests import expect_error, get_history

Play = Callable[..., None]
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
NAMES = {"type": "array", "items": {"type": "string"}}
WAYS = [(api, stream) for api in APIS for stream in (False, True)]


def schema_field(api: str, schema: Any) -> dict[str, Any]:
    """The fields of a request for JSON of a schema; None is any object."""
    if schema is None:
        return {"response_format": {"type": "json_object"}} if api == CHAT else {"text": {"format": {"type": "json_object"}}}
    if api == CHAT:
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}}
    if api == RESPONSES:
        return {"text": {"format": {"type": "json_schema", "name": "answer", "schema": schema}}}
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


async def contents(portico: RunningGateway, session: str) -> list[Any]:
    return [message["content"] for message in await get_history(portico.client, session)]


async def test_the_answer_is_the_json_of_the_schema_and_nothing_else(portico: RunningGateway, play: Play) -> None:
    play({"steps": [{"text": "I look it up."}, {"message_end": True}, {"text": 'Sure:\n```json\n{"n": 2}\n```\nAnything else?'}]})
    for api, stream in WAYS:
        reply = await ask(portico.client, api, "1+1?", stream=stream, **schema_field(api, NUMBER))
        assert (reply.text, reply.refusal, reply.calls, reply.end) == ('{"n":2}', "", [], "stop"), api
        # The stored message is the value alone, too, and that of the user is its own.
        assert await contents(portico, reply.session) == ["1+1?", "I look it up.", '{"n":2}'], api


async def test_an_answer_that_does_not_match_is_asked_for_once_more(portico: RunningGateway, play: Play) -> None:
    play({"steps": [{"text": '["one", 2]'}]}, {"when": r"\$\[1\]: 2 is not of type", "steps": [{"text": '["one", "two"]'}]})
    for api, stream in WAYS:
        reply = await ask(portico.client, api, "names?", stream=stream, **schema_field(api, NAMES))
        assert (reply.text, reply.end) == ('["one","two"]', "stop"), api
        assert await contents(portico, reply.session) == ["names?", '["one","two"]'], api
    # One that still does not match is a refusal with its words.
    play({"steps": [{"text": "Let me think."}]}, {"steps": [{"text": "I cannot count."}]})
    for api, stream in WAYS:
        reply = await ask(portico.client, api, stream=stream, **schema_field(api, NUMBER))
        refusal = "I cannot count.\n\n[the answer does not match the JSON schema: it is not JSON]"
        assert (reply.text, reply.refusal, reply.calls) == ("", refusal, []), api
        assert reply.end == ("refusal" if api == MESSAGES else "stop")
    # Any object will do where no schema is given.
    play({"steps": [{"text": "[1]"}]}, {"steps": [{"text": '{"a": [1]}'}]})
    for api in (CHAT, RESPONSES):
        assert (await ask(portico.client, api, **schema_field(api, None))).text == '{"a":[1]}', api


async def test_a_conversation_goes_on_in_its_session_without_the_schema(portico: RunningGateway, play: Play) -> None:
    play({"steps": [{"text": '{"n": 1}'}]}, {"steps": [{"text": "As text: {prompt}"}]})
    for api in APIS:
        first = await ask(portico.client, api, "one", **schema_field(api, NUMBER))
        assert first.text == '{"n":1}', api
        # As clients send it that have parsed it.
        second = await ask(portico.client, api, "one", {"role": "assistant", "content": '{ "n": 1 }'}, "two")
        assert (second.session, second.text) == (first.session, "As text: two"), api


BAD_SCHEMAS: list[tuple[Any, str]] = [
    ({"type": "objekt"}, "'objekt' is not valid"),
    ({"$ref": "https://example.com/schema.json"}, "put what it refers to into $defs"),
    ({"properties": {"a": {"items": {"$ref": "other.json#/a"}}}}, "'other.json#/a' is not in the schema"),
    ({"description": "x" * 300_000}, "longer than 256 KiB"),
]
BAD_FORMS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"response_format": {"type": "xml"}}),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}),
    (RESPONSES, {"text": {"format": {"type": "grammar"}}}),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": "x"}}}),
    (MESSAGES, {"output_format": {"type": "json_schema"}}),
    (CHAT, {"tool_choice": "required"}),
    (CHAT, {**tools(CHAT, "a"), "tool_choice": {"type": "function", "function": {"name": "b"}}}),
    (RESPONSES, {**tools(RESPONSES, "a"), "tool_choice": {"type": "function", "name": "b"}}),
    (MESSAGES, {**tools(MESSAGES, "a"), "tool_choice": {"type": "tool", "name": "b"}}),
    (MESSAGES, {**tools(MESSAGES, "a"), "tool_choice": {"type": "some"}}),
]


async def test_schemas_and_forms_that_are_none_are_refused_by_the_name_of_their_field(portico: RunningGateway) -> None:
    names = {CHAT: "response_format.json_schema.schema", RESPONSES: "text.format.schema", MESSAGES: "output_config.format.schema"}
    for schema, text in BAD_SCHEMAS:
        for api, field in names.items():
            answer = await post(portico.client, api, **schema_field(api, schema))
            message = answer.json()["error"]["message"]
            assert answer.status_code == 400 and message.startswith(f"{field}: ") and text in message, (api, text)
    for api, fields in BAD_FORMS:
        answer = await post(portico.client, api, **fields)
        assert answer.status_code == 400, fields
        assert answer.json()["error"]["message"].split(":")[0].split(".")[0] in fields


async def test_a_call_that_is_required_is_asked_for_once_more(portico: RunningGateway, play: Play) -> None:
    call = {"app_tool": {"id": "c1", "name": "weather", "input": {"city": "Rome"}}}
    play({"steps": [{"text": "I know the weather."}]}, {"when": "You have not called a tool", "steps": [call, {"text": "Done."}]})
    for api, stream in WAYS:
        for choice in ("required", "weather"):
            fields = tools(api, "weather", "time", choice=choice)
            reply = await ask(portico.client, api, "weather?", stream=stream, **fields)
            assert [name for _, name, _ in reply.calls] == ["weather"] and not reply.text, (api, choice)
            assert "tool_choice" not in reply.ignored, (api, choice)
    # One that the agent does not make is named in the header.
    play({"steps": [{"text": "No."}]}, {"steps": [{"text": "Still no."}]})
    for api, stream in WAYS:
        reply = await ask(portico.client, api, stream=stream, **tools(api, "weather", choice="required"))
        assert (reply.text, reply.calls, "tool_choice" in reply.ignored) == ("Still no.", [], True), api


async def test_a_call_is_required_again_after_a_result(portico: RunningGateway, play: Play) -> None:
    call = {"app_tool": {"id": "c{turn}", "name": "weather", "input": {}}}
    play({"steps": [call, {"text": "It rains."}]}, {"steps": [{"app_tool": {"id": "d1", "name": "final", "input": {}}}]})
    fields = tools(CHAT, "weather", "final", choice="required")
    first = await ask(portico.client, CHAT, "weather?", **fields)
    given = results(CHAT, **{first.calls[0][0]: "rain"})
    second = await ask(portico.client, CHAT, "weather?", first, *given, **fields)
    assert [name for _, name, _ in second.calls] == ["final"]
    # Tools for an agent that takes none are named in the header.
    for api in APIS:
        reply = await ask(portico.client, api, "hi", model="echo", **tools(api, "weather", choice="required"))
        assert (reply.text, reply.ignored >= {"tools", "tool_choice"}) == ("hi", True), api


async def test_a_stored_response_is_read_again_as_it_was(portico: RunningGateway, play: Play) -> None:
    play({"steps": [{"text": 'Here: {"n": 3}'}]})
    request = {"model": "script", "input": "3?", **schema_field(RESPONSES, NUMBER)}
    made = (await portico.client.post("/v1/responses", json=request)).json()
    assert made["output"][-1]["content"][0]["text"] == '{"n":3}'
    again = (await portico.client.get(f"/v1/responses/{made['id']}")).json()
    assert again["output"] == made["output"] and again["text"]["format"]["schema"] == NUMBER


# -- over AAP -------------------------------------------------------------------------------------------------------------


async def test_a_turn_of_aap_has_the_value_and_the_next_one_is_text(portico: RunningGateway, aap: AapClient, play: Play) -> None:
    play({"steps": [{"text": 'It is {"n": 7}.'}]}, {"steps": [{"text": "{prompt}"}]}, {"steps": [{"text": "no"}]})
    session = (await aap.post_sessions(agent={"name": "script"})).json()["sessionId"]
    answer = await aap.send_turn(session, "7?", output_schema=NUMBER)
    assert (answer["x-portico"]["output"], answer["messages"][-1]["content"]) == ({"n": 7}, '{"n":7}')
    answer = await aap.send_turn(session, "plain")
    assert answer["messages"][-1]["content"] == "plain" and "output" not in answer.get("x-portico", {})
    answer = await aap.send_turn(session, "8?", output_schema=NUMBER)
    assert answer["stopReason"] == "end_turn"
    assert answer["x-portico"]["outputError"] == "the answer does not match the JSON schema: it is not JSON"
    # A stream has the value at its end.
    play({"steps": [{"text": "wrong"}]}, {"steps": [{"text": '["a"]'}]})
    session = (await aap.post_sessions(agent={"name": "script"})).json()["sessionId"]
    frames = await aap.stream_turn(session, {"role": "user", "content": "a?"}, stream="delta", output_schema=NAMES)
    assert ("text_delta", {"delta": '["a"]'}) in frames and "wrong" not in json.dumps(frames)
    assert frames[-1][1]["x-portico"]["output"] == ["a"]
    # A wrong schema changes nothing.
    before = await aap.get_session(session)
    wrong = {"messages": [{"role": "user", "content": "a?"}], "output_schema": {"type": 5}}
    assert (await expect_error(aap.post(session, wrong), 400)).startswith("output_schema: ")
    wrong_creation = {"agent": {"name": "echo"}, **wrong}
    assert (await expect_error(portico.client.put("/session", json=wrong_creation), 400)).startswith("output_schema: ")
    assert await aap.get_session(session) == before and len((await aap.list_sessions())["sessions"]) == 2
