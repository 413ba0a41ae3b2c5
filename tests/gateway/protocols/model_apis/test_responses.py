"""`/v1/responses`: items in and out, the stream, what follows a response, and responses by their ids."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.protocols.model_apis.stored_responses import STORE_ENDS_AFTER
from gateway.security.authentication import ADMINISTRATOR
from tests.conftest import write_config
from tests.support.daemon import Daemon, RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.named_keys import add_key
from tests.support.requests import get_history
from tests.support.sse import typed_events
from tests.support.stores import content as stored_content
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
Play = Callable[..., None]
Json = dict[str, Any]
REMEMBER = {"remember": True}
WEATHER = {"type": "function", "name": "weather", "description": "The weather.", "parameters": {"type": "object"}}
CALL = {"app_tool": {"id": "sky", "name": "weather", "input": {"in": "Rome"}}}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


@asynccontextmanager
async def scripted(
    tmp_path: Path, write_scenario: WriteScenario, *turns: Any, clock: Clock = SYSTEM_CLOCK, **tables: Any
) -> AsyncIterator[RunningGateway]:
    """A gateway whose agent `script` plays these turns."""
    agents = {"script": {"driver": "script", "cwd": str(tmp_path / "scenes"), "options": {"scenario": write_scenario(*turns)}}}
    async with run_gateway(gateway_config(tmp_path, agents=agents, **tables), clock) as portico:
        yield portico


async def create(client: httpx.AsyncClient, given: Any = "hello", status: int = 200, **fields: Any) -> Json:
    """Create a response, and return its JSON."""
    answer = await client.post("/v1/responses", json={"model": "script", "input": given, **fields})
    assert answer.status_code == status, answer.text
    return dict(answer.json())


async def create_status(client: httpx.AsyncClient, given: Any, **fields: Any) -> int:
    return (await client.post("/v1/responses", json={"model": "script", "input": given, **fields})).status_code


async def stream(client: httpx.AsyncClient, given: Any = "hello", **fields: Any) -> list[Json]:
    """Create a response with `stream`, and return its events."""
    answer = await client.post("/v1/responses", json={"model": "script", "input": given, "stream": True, **fields})
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, "text/event-stream"), answer.text
    events = typed_events(answer.text)
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    return events


def output_text(response: Json) -> str:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


def session_of(answer: httpx.Response) -> str:
    return answer.headers["x-portico-session"]


def result(output: Any = "sun", call_id: str = "sky") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


# -- one response -------------------------------------------------------------------------------------------------------------


async def test_a_response_and_the_events_of_its_stream(portico: RunningGateway, play: Play) -> None:
    # A text is answered.
    usage = {"input_tokens": 20, "cache_read": 100, "cache_write": 3, "output_tokens": 18, "reasoning_tokens": 5}
    steps = [{"thinking": "Hm."}, {"text": "You said: {prompt}"}, {"usage": usage}]
    play(steps)
    found = await create(portico.client, metadata={"a": "b"}, instructions="Be brief.")
    reasoning, message = found["output"]
    assert (reasoning["type"], reasoning["summary"]) == ("reasoning", [{"type": "summary_text", "text": "Hm."}])
    assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
    assert [(part["type"], part["text"]) for part in message["content"]] == [("output_text", "You said: hello")]
    assert [found["id"][:5], reasoning["id"][:3], message["id"][:4]] == ["resp_", "rs_", "msg_"]
    assert (found["object"], found["status"], found["error"], found["incomplete_details"]) == (
        "response",
        "completed",
        None,
        None,
    )
    assert (found["metadata"], found["instructions"], found["model"]) == ({"a": "b"}, "Be brief.", "script")
    assert found["completed_at"] >= found["created_at"]
    assert found["usage"] == {
        "input_tokens": 123,
        "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 3},
        "output_tokens": 18,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 141,
    }
    # The events of a stream.
    steps = [{"thinking": "Hm."}, {"text": "On"}, {"text": "e"}, CALL]
    play(steps)
    events = await stream(portico.client, tools=[WEATHER])
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta", "reasoning_summary_text.done",
        "reasoning_summary_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    final = events[-1]["response"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == final["output"]
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
    assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == "One" == output_text(final)
    call = done[-1]
    assert (call["id"][:3], call["call_id"], call["name"], call["arguments"]) == ("fc_", "sky", "weather", '{"in":"Rome"}')
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == done[event["output_index"]]["id"]
    assert (events[0]["response"]["status"], final["status"]) == ("in_progress", "completed")
    # A run that fails later is a failed response.
    failing = [{"text": "half"}, {"stop": {"reason": "error", "message": "the model is down"}}]
    play(failing)
    found = await create(portico.client)
    events = await stream(portico.client)
    again = (await portico.client.get(f"/v1/responses/{found['id']}")).json()
    error = {"code": "server_error", "message": "the model is down"}
    assert (found["status"], found["error"], output_text(found)) == ("failed", error, "half")
    assert (events[-1]["type"], events[-1]["response"]["error"]) == ("response.failed", error)
    assert again == found


async def test_items_of_all_kinds_are_a_history(portico: RunningGateway, play: Play) -> None:
    play([REMEMBER])
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_x", "summary": [], "encrypted_content": "gAAA"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
        {"type": "function_call", "call_id": "sky", "name": "weather", "arguments": '{"in": "Rome"}'},
        result([{"type": "input_text", "text": "sun"}, {"type": "input_image", "image_url": PIXEL}]),
        {"type": "message", "role": "assistant", "content": "Sun."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "And now?"}, {"type": "input_image", "image_url": PIXEL}],
        },
    ]
    answer = await portico.client.post("/v1/responses", json={"model": "script", "input": items, "instructions": "Be brief."})
    assert output_text(answer.json()) == '["Weather?"]'
    assert answer.headers["x-portico-ignored"] == "input.reasoning"
    history = await get_history(portico.client, session_of(answer))
    image = {"type": "image", "url": PIXEL}
    call = {"type": "tool_use", "toolCallId": "sky", "name": "weather", "input": {"in": "Rome"}}
    assert history[:-1] == [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [{"type": "text", "text": "Looking."}, call]},
        {"role": "tool", "toolCallId": "sky", "content": [{"type": "text", "text": "sun"}, image]},
        {"role": "assistant", "content": [{"type": "text", "text": "Sun."}]},
        {"role": "user", "content": [{"type": "text", "text": "And now?"}, image]},
    ]


REFUSED_FIELDS: list[Any] = [
    ({"input": []}, "input: the last message must be"),
    ({"input": [{"role": "user", "content": " "}]}, "blank"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role: 'robot'"),
    ({"input": [{"type": "dream", "id": "ws_1"}]}, "input.0.type: 'dream' is not supported"),
    ({"input": [{"role": "user", "content": [{"type": "picture", "file_id": "f"}]}]}, "content.0.type: 'picture'"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input.0.content.0.file_id"),
    ({"input": [{"role": "user", "content": 7}]}, "input.0.content: must be a text, or a list"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "n", "arguments": "[]"}]}, "input.0.arguments: must be"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "n", "arguments": "{"}]}, "input.0.arguments: not JSON"),
    ({"input": [{"type": "function_call", "name": "n", "arguments": "{}"}]}, "input.0.call_id"),
    ({"input": [{"role": "user", "content": "x"}, result()]}, "no tool call 'sky'"),
    (
        {
            "input": [
                {"role": "user", "content": "x"},
                {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"},
                {"role": "user", "content": "x"},
            ]
        },
        "'c' has no result",
    ),
    ({"tools": [{"name": "web_search"}]}, "tools.0.type: missing"),
    ({"tools": [{"type": "function"}]}, "tools.0.name"),
    ({"tool_choice": "required"}, "tool_choice: a call is required, and there are no tools"),
    ({"tool_choice": "some"}, "tool_choice: 'some'"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema: missing"),
    ({"text": {"format": "json"}}, "text.format: must be an object"),
    ({"prompt": {"id": "p"}}, "prompt: "),
    ({"top_logprobs": 2}, "top_logprobs: "),
    ({"messages": [{"role": "user", "content": "x"}]}, "send `input`"),
    ({"background": True, "store": False}, "background: "),
    ({"conversation": "conv_x", "previous_response_id": "resp_x"}, "previous_response_id: leave it out"),
    ({"conversation": "conv_x", "store": False}, "conversation: "),
    ({"model": None}, "model: missing"),
    ({"reasoning": {"effort": 3}}, "reasoning.effort"),
    ({"stream": "yes please"}, "stream"),
]


async def test_what_is_not_supported_is_refused_by_name(portico: RunningGateway) -> None:
    for fields, problem in REFUSED_FIELDS:
        body = {"model": "script", "input": "hello", **fields}
        answer = await portico.client.post("/v1/responses", json=body)
        assert answer.status_code in (400, 404), answer.text
        error = answer.json()["error"]
        assert problem in error["message"] and error["type"] == "invalid_request_error", (fields, problem)
        assert (await portico.client.get("/sessions")).json()["sessions"] == [], "nothing has changed"


async def test_numbers_that_json_cannot_have_are_null(portico: RunningGateway) -> None:
    tools = '[{"type": "function", "name": "w", "parameters": {"maximum": 1e999}}]'
    body = '{"model": "script", "input": "hi", "temperature": 1e999, "presence_penalty": -1e999, "tools": %s, "stream": %s}'
    for stream in ("false", "true"):
        content = body % (tools, stream)
        answer = await portico.client.post("/v1/responses", content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 200, answer.text
        response = typed_events(answer.text)[-1]["response"] if stream == "true" else answer.json()
        assert (response["temperature"], response["presence_penalty"]) == (None, None)
        assert response["tools"][0]["parameters"] == {"maximum": None}
        again = await portico.client.get(f"/v1/responses/{response['id']}")
        assert again.json()["tools"] == response["tools"]


async def test_what_has_no_effect_is_said(portico: RunningGateway) -> None:
    fields = {
        "temperature": 0.5, "top_p": 0.9, "max_output_tokens": 9, "parallel_tool_calls": False, "truncation": "auto",
        "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "high", "summary": "auto", "context": "all"},
        "text": {"verbosity": "low", "format": {"type": "text"}}, "service_tier": "auto", "tools": [{**WEATHER, "strict": True}],
        "tool_choice": "none", "surprise": 1, "max_tool_calls": 3, "frequency_penalty": 0, "prompt_cache_key": "k", "user": "u",
    }  # fmt: skip
    answer = await portico.client.post("/v1/responses", json={"model": "script", "input": "hello", **fields})
    assert answer.status_code == 200, answer.text
    assert set(answer.headers["x-portico-ignored"].split(", ")) == {
        "temperature", "top_p", "max_output_tokens", "parallel_tool_calls", "truncation", "include", "reasoning.context",
        "reasoning.effort", "text.verbosity", "tools.strict", "surprise", "max_tool_calls",
    }  # fmt: skip
    found = answer.json()
    assert (found["temperature"], found["max_tool_calls"], found["reasoning"]["effort"]) == (0.5, 3, None)
    assert [tool["name"] for tool in found["tools"]] == ["weather"]


# -- failures -----------------------------------------------------------------------------------------------------------------


# -- what follows a response --------------------------------------------------------------------------------------------------


async def test_a_previous_response_is_continued_in_its_warm_session(portico: RunningGateway, play: Play) -> None:
    play([REMEMBER])
    first = await portico.client.post("/v1/responses", json={"model": "script", "input": "one"})
    session = await portico.gateway.sessions.get(ADMINISTRATOR, session_of(first))
    agent = session.live
    body = {"model": "script", "input": "two", "previous_response_id": first.json()["id"]}
    second = await portico.client.post("/v1/responses", json=body)
    assert output_text(second.json()) == '["one"]'
    assert session_of(second) == session_of(first) and session.live is agent
    assert second.json()["previous_response_id"] == first.json()["id"]
    # The same again is a branch.
    branch = await portico.client.post("/v1/responses", json={**body, "input": "TWO"})
    assert output_text(branch.json()) == '["one"]' and session_of(branch) != session_of(first)
    third = await create(portico.client, "three", previous_response_id=branch.json()["id"])
    assert output_text(third) == '["one", "TWO"]'
    # Instructions are those of one response.
    play([REMEMBER])
    systems = []
    previous, sessions = None, []
    for text, instructions in [("one", "Be brief."), ("two", "Be brief."), ("three", "Be long."), ("four", None)]:
        fields = {"previous_response_id": previous, "instructions": instructions}
        answer = await portico.client.post("/v1/responses", json={"model": "script", "input": text, **fields})
        previous = answer.json()["id"]
        sessions.append(session_of(answer))
        history = await get_history(portico.client, sessions[-1])
        systems.append([message["content"] for message in history if message["role"] == "system"])
    assert output_text(answer.json()) == '["one", "two", "three"]'
    assert systems == [["Be brief."], ["Be brief."], ["Be long."], []]
    assert sessions[0] == sessions[1] and len(set(sessions)) == 3
    # An unknown previous response.
    refused = await create(portico.client, "two", 404, previous_response_id="resp_none")
    assert (refused["error"]["code"], refused["error"]["param"]) == ("previous_response_not_found", "previous_response_id")


async def test_results_resume_the_run_of_a_previous_response(portico: RunningGateway, play: Play) -> None:
    play([{"text": "Looking. "}, CALL, {"text": "It is {results.sky}."}])
    first = await portico.client.post("/v1/responses", json={"model": "script", "input": "Weather?", "tools": [WEATHER]})
    run = (await portico.gateway.sessions.get(ADMINISTRATOR, session_of(first))).run
    fields = {"previous_response_id": first.json()["id"], "tools": [WEATHER]}
    refused = await create(portico.client, "Well?", 400, **fields)
    assert (
        refused["error"]["message"].startswith("input: the tool call 'sky' has no result")
        and refused["error"]["param"] == "input"
    )
    # Some clients repeat the call.
    call = next(item for item in first.json()["output"] if item["type"] == "function_call")
    second = await portico.client.post("/v1/responses", json={"model": "script", "input": [call, result()], **fields})
    assert output_text(second.json()) == "It is sun."
    session = await portico.gateway.sessions.get(ADMINISTRATOR, session_of(second))
    assert session.id == session_of(first) and session.run is run
    # The same call once more, with another result: a branch.
    third = await portico.client.post("/v1/responses", json={"model": "script", "input": [result("rain")], **fields})
    assert output_text(third.json()) == "It is rain." and session_of(third) != session_of(first)


async def test_a_whole_conversation_without_ids_and_items_by_reference(portico: RunningGateway, play: Play) -> None:
    # A whole conversation without ids.
    play([REMEMBER])
    body: Json = {"model": "script", "store": False, "instructions": "Be brief."}
    first = await portico.client.post("/v1/responses", json={**body, "input": [{"role": "user", "content": "one"}]})
    items = [{"role": "user", "content": "one"}, *first.json()["output"], {"role": "user", "content": "two"}]
    second = await portico.client.post("/v1/responses", json={**body, "input": items})
    assert output_text(second.json()) == '["one"]' and session_of(second) == session_of(first)
    for answer in (first, second):
        assert answer.json()["store"] is False
        gone = await portico.client.get(f"/v1/responses/{answer.json()['id']}")
        assert (gone.status_code, gone.json()["error"]["type"]) == (404, "invalid_request_error")
    # Items may be given by reference.
    play([{"thinking": "Hm."}, REMEMBER])
    first = await portico.client.post("/v1/responses", json={"model": "script", "input": "one"})
    references = [{"type": "item_reference", "id": item["id"]} for item in first.json()["output"]]
    items = [{"role": "user", "content": "one"}, *references, {"role": "user", "content": "two"}]
    second = await portico.client.post("/v1/responses", json={"model": "script", "input": items})
    assert output_text(second.json()) == '["one"]' and session_of(second) == session_of(first)
    for unknown in ("msg_x", "other", references[0]["id"] + "9"):
        items[1] = {"id": unknown}
        refused = await create(portico.client, items, 404)
        assert f"no item '{unknown}'" in refused["error"]["message"]


async def test_a_conversation_names_its_newest_response(portico: RunningGateway, play: Play) -> None:
    play([REMEMBER])
    made = (await portico.client.post("/v1/conversations", json={"metadata": {"topic": "demo"}})).json()
    assert made["id"].startswith("conv_") and made["metadata"] == {"topic": "demo"}
    assert (await portico.client.get(f"/v1/conversations/{made['id']}")).json() == made
    made["metadata"] = {"topic": "another"}
    changed = await portico.client.post(f"/v1/conversations/{made['id']}", json={"metadata": made["metadata"]})
    assert changed.json() == made == (await portico.client.get(f"/v1/conversations/{made['id']}")).json()
    first = await create(portico.client, "one", conversation=made["id"])
    assert first["conversation"] == {"id": made["id"]}
    assert output_text(await create(portico.client, "two", conversation={"id": made["id"]})) == '["one"]'
    assert output_text(await create(portico.client, "TWO", previous_response_id=first["id"])) == '["one"]'
    assert output_text(await create(portico.client, "three", conversation=made["id"])) == '["one", "two"]'
    both = await asyncio.gather(*(create_status(portico.client, "again", conversation=made["id"]) for _ in range(2)))
    assert sorted(both) in ([200, 200], [200, 409]), "the second follows the first, or finds it in progress"
    last = json.loads(output_text(await create(portico.client, "last", conversation=made["id"])))
    assert last == ["one", "two", "three", *["again"] * both.count(200)]
    assert "no conversation 'conv_x'" in (await create(portico.client, "x", 404, conversation="conv_x"))["error"]["message"]
    deleted = (await portico.client.delete(f"/v1/conversations/{made['id']}")).json()
    assert deleted == {"id": made["id"], "object": "conversation.deleted", "deleted": True}
    await create(portico.client, "four", 404, conversation=made["id"])
    # A conversation goes on without a session that was deleted.
    play([REMEMBER])
    made = (await portico.client.post("/v1/conversations", json={})).json()
    first = await create(portico.client, "one", conversation=made["id"])
    await create(portico.client, "two", conversation=made["id"])
    body = {"model": "script", "input": "other", "conversation": made["id"], "instructions": "Be brief."}
    branch = session_of(await portico.client.post("/v1/responses", json=body))
    base = session_of(await portico.client.get(f"/v1/responses/{first['id']}"))
    assert branch != base
    await portico.client.delete(f"/session/{branch}")
    assert output_text(await create(portico.client, "three", conversation=made["id"])) == '["one", "two"]'
    await portico.client.delete(f"/session/{base}")
    assert output_text(await create(portico.client, "four", conversation=made["id"])) == "[]"


# -- responses by their ids ---------------------------------------------------------------------------------------------------


async def test_a_response_is_read_again_and_deleted(portico: RunningGateway, play: Play) -> None:
    # A response is read again.
    steps = [{"thinking": "Hm."}, {"text": "One."}, CALL, {"text": "Two."}]
    play(steps)
    found = await create(portico.client, tools=[WEATHER])
    path = f"/v1/responses/{found['id']}"
    assert (await portico.client.get(path)).json() == found
    events = await stream(portico.client, tools=[WEATHER])
    path = f"/v1/responses/{events[0]['response']['id']}"
    assert typed_events((await portico.client.get(path, params={"stream": True})).text) == events
    resumed = await portico.client.get(path, params={"stream": True, "starting_after": 5})
    assert typed_events(resumed.text) == events[6:]
    # Input items.
    play([CALL, {"text": "Two."}])
    parts = [{"type": "input_text", "text": "Look."}, {"type": "input_image", "image_url": PIXEL}]
    found = await create(portico.client, [{"role": "user", "content": parts}], tools=[WEATHER])
    page = (await portico.client.get(f"/v1/responses/{found['id']}/input_items")).json()
    [item] = page["data"]
    assert (item["role"], item["content"][0]["text"], item["content"][1]["image_url"]) == ("user", "Look.", PIXEL)
    assert (page["object"], page["first_id"], page["has_more"]) == ("list", item["id"], False)
    after = await create(portico.client, [result()], tools=[WEATHER], previous_response_id=found["id"])
    path = f"/v1/responses/{after['id']}/input_items"
    [item] = (await portico.client.get(path)).json()["data"]
    assert (item["type"], item["call_id"], item["output"]) == ("function_call_output", "sky", "sun")
    assert (await portico.client.get(path, params={"after": item["id"]})).json()["data"] == []
    assert (await portico.client.get(path, params={"after": "x"})).status_code == 400
    # A response is deleted.
    found = await create(portico.client)
    path = f"/v1/responses/{found['id']}"
    assert (await portico.client.delete(path)).json() == {"id": found["id"], "object": "response", "deleted": True}
    assert (await portico.client.get(path)).status_code == (await portico.client.delete(path)).status_code == 404
    await create(portico.client, "two", 404, previous_response_id=found["id"])
    # A response is gone with its session.
    answer = await portico.client.post("/v1/responses", json={"model": "script", "input": "hello"})
    assert (await portico.client.delete(f"/session/{session_of(answer)}")).status_code < 300
    assert (await portico.client.get(f"/v1/responses/{answer.json()['id']}")).status_code == 404
    # Only what is in the background is cancelled by id.
    found = await create(portico.client)
    refused = await portico.client.post(f"/v1/responses/{found['id']}/cancel")
    assert (refused.status_code, "`background`" in refused.json()["error"]["message"]) == (400, True)


async def test_only_its_owner_sees_a_response(portico: RunningGateway) -> None:
    phone, desk = [{"Authorization": f"Bearer {await add_key(portico.gateway, name)}"} for name in ("phone", "desk")]
    body = {"model": "script", "input": "hello"}
    found = (await portico.client.post("/v1/responses", json=body, headers=phone)).json()
    conversation = (await portico.client.post("/v1/conversations", json={}, headers=phone)).json()["id"]
    path = f"/v1/responses/{found['id']}"
    assert (await portico.client.get(path, headers=phone)).status_code == 200
    for method, where in [("GET", path), ("DELETE", path), ("POST", f"{path}/cancel"), ("GET", f"{path}/input_items")]:
        assert (await portico.client.request(method, where, headers=desk)).status_code == 404, where
    for other in (
        {"previous_response_id": found["id"]},
        {"conversation": conversation},
        {"input": [{"type": "item_reference", "id": found["output"][0]["id"]}, {"role": "user", "content": "x"}]},
    ):
        refused = await portico.client.post("/v1/responses", json={**body, **other}, headers=desk)
        assert refused.status_code == 404, refused.text


# -- in the background --------------------------------------------------------------------------------------------------------


async def test_responses_in_the_background(portico: RunningGateway, play: Play, tmp_path: Path) -> None:
    # A response in the background goes on by itself.
    steps = [{"text": "One. "}, {"wait_for_file": "go"}, {"text": "Two."}]
    play(steps)
    begun = await create(portico.client, background=True)
    assert (begun["status"], begun["background"], begun["usage"]) == ("in_progress", True, None)
    path = f"/v1/responses/{begun['id']}"
    async with portico.client.stream("GET", path, params={"stream": True}) as answer:
        lines = answer.aiter_lines()
        seen = [line async for line in _until(lines, '"delta":"One. "')]
    number = json.loads(seen[-1].removeprefix("data: "))["sequence_number"]
    now = (await portico.client.get(path)).json()
    assert (now["status"], output_text(now), now["output"][0]["status"]) == ("in_progress", "One. ", "in_progress")
    busy = await create(portico.client, "x", 409, previous_response_id=begun["id"])
    assert "is in progress" in busy["error"]["message"]
    resuming = asyncio.create_task(portico.client.get(path, params={"stream": True, "starting_after": number}))
    (tmp_path / "scenes" / "go").touch()
    rest = typed_events((await resuming).text)
    assert [event["sequence_number"] for event in rest] == [*range(number + 1, number + 1 + len(rest))]
    assert (rest[0]["delta"], rest[-1]["type"]) == ("Two.", "response.completed")
    final = (await portico.client.get(path)).json()
    assert (final["status"], output_text(final)) == ("completed", "One. Two.")
    assert final == rest[-1]["response"]
    unchanged = (await portico.client.post(f"{path}/cancel")).json()
    assert unchanged == final
    # A response in the background is cancelled.
    play([{"text": "One. "}, {"hang": True}])
    begun = await create(portico.client, background=True)
    path = f"/v1/responses/{begun['id']}"
    following = asyncio.create_task(portico.client.get(path, params={"stream": True}))
    while output_text((await portico.client.get(path)).json()) != "One. ":
        pass
    cancelled = (await portico.client.post(f"{path}/cancel")).json()
    assert (cancelled["status"], output_text(cancelled)) == ("cancelled", "One. ")
    assert (await portico.client.post(f"{path}/cancel")).json() == cancelled
    last = typed_events((await following).text)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    assert (await portico.client.get(path)).json()["status"] == "cancelled"


async def _until(lines: AsyncIterator[str], text: str) -> AsyncIterator[str]:
    async for line in lines:
        yield line
        if text in line:
            return


async def test_a_permission_that_nobody_can_give_is_denied_in_the_background(
    tmp_path: Path, write_scenario: WriteScenario
) -> None:
    call = {"tool_call": {"id": "sh", "name": "shell", "input": {"command": "ls"}, "result": "files"}}
    async with scripted(tmp_path, write_scenario, [call, {"text": "done"}], openai={"tools": "agent"}) as portico:
        events = await stream(portico.client, background=True)
        path = f"/v1/responses/{events[0]['response']['id']}"
        assert events[-1]["type"] == "response.completed" and output_text(events[-1]["response"]) == "done"
        assert typed_events((await portico.client.get(path, params={"stream": True})).text) == events
        follow = await create(portico.client, "go on", previous_response_id=events[0]["response"]["id"])
        assert follow["status"] == "completed"


async def test_responses_outlive_the_daemon(daemon: Daemon, tmp_path: Path, write_scenario: WriteScenario) -> None:
    agent = {"driver": "script", "cwd": str(tmp_path / "scenes"), "options": {"scenario": write_scenario([REMEMBER])}}
    hanging = {**agent, "options": {"scenario": write_scenario([{"text": "One. "}, {"hang": True}], name="hang.json")}}
    write_config(tmp_path, gateway_config(tmp_path, agents={"script": agent, "hanging": hanging}))
    await daemon.start()
    async with daemon.client() as client:
        first = await client.post("/v1/responses", json={"model": "script", "input": "one"})
        conversation = (await client.post("/v1/conversations", json={})).json()["id"]
        await create(client, "uno", conversation=conversation)
        begun = await create(client, model="hanging", background=True)
        # A client sees it some milliseconds before it is stored.
        await wait_until(lambda: b"One. " in stored_content(tmp_path / "data"))
        assert output_text((await client.get(f"/v1/responses/{begun['id']}")).json()) == "One. "
    await daemon.kill()
    await daemon.start()
    async with daemon.client() as client:
        assert (await client.get(f"/v1/responses/{first.json()['id']}")).json() == first.json()
        body = {"model": "script", "input": "two", "previous_response_id": first.json()["id"]}
        second = await client.post("/v1/responses", json=body)
        assert output_text(second.json()) == '["one"]' and session_of(second) == session_of(first)
        assert output_text(await create(client, "due", conversation=conversation)) == '["uno"]'
        killed = (await client.get(f"/v1/responses/{begun['id']}")).json()
        assert (killed["status"], killed["error"]["code"], output_text(killed)) == ("failed", "server_error", "One. ")


async def test_the_end_of_a_response_is_stored_a_moment_later(tmp_path: Path, clock: ManualClock) -> None:
    async with run_gateway(gateway_config(tmp_path), clock) as portico:
        made = await create(portico.client, model="echo")
        stored = portico.gateway.store.responses

        async def end() -> float | None:
            record = await stored.get(made["id"])
            return None if record is None else record.completed_at

        await clock.waited_for(STORE_ENDS_AFTER)
        assert await end() is None
        await clock.advance(STORE_ENDS_AFTER)
        assert await wait_until(end)


async def test_streams_of_a_silent_agent_in_the_background_are_kept_open(
    tmp_path: Path, write_scenario: WriteScenario, clock: ManualClock
) -> None:
    """That of a request, of one in the background, and of a response that is looked at."""
    turn, keep_alive = [{"wait_for_file": "go"}, {"text": "done"}], 0.7
    async with scripted(tmp_path, write_scenario, turn, clock=clock, server={"keep_alive": keep_alive}) as portico:
        made = await create(portico.client, background=True)
        body = {"model": "script", "input": "hello", "stream": True}
        asking = [
            asyncio.create_task(request)
            for request in (
                portico.client.get(f"/v1/responses/{made['id']}?stream=true"),
                portico.client.post("/v1/responses", json={**body, "background": True}),
                portico.client.post("/v1/responses", json=body),
            )
        ]
        # The response to the last one begins, and then its stream is silent.
        for _ in range(2):
            await clock.expire(keep_alive, by=3)
        (tmp_path / "scenes" / "go").touch()
        texts = [(await one).text for one in asking]
    assert [text.count(": keep-alive\n\n") for text in texts] == [2, 2, 1]
    assert all(typed_events(text)[-1]["type"] == "response.completed" for text in texts)
