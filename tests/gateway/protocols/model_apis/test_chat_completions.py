"""`POST /v1/chat/completions`: the JSON object, the chunks of a stream, tools, errors, and what is not supported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from drivers.contract.driver_info import EFFORT_OPTION, Option, Probe
from gateway.protocols.model_apis.chat_completions_request import REFUSED
from gateway.security.authentication import ADMINISTRATOR
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import get_history
from tests.support.sse import chunks_of
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
PATH = "/v1/chat/completions"
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": {"type": "object"}}}
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
REMEMBER = {"remember": True}


def said(text: Any, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **fields}


def body(*messages: Any, model: str = "script", **fields: Any) -> dict[str, Any]:
    """The body of a request. Strings are messages of the user."""
    return {"model": model, "messages": [said(m) if isinstance(m, str) else m for m in messages or ("hello",)], **fields}


async def complete(portico: RunningGateway, *messages: Any, **fields: Any) -> httpx.Response:
    answer = await portico.client.post(PATH, json=body(*messages, **fields))
    assert answer.status_code == 200, answer.text
    return answer


def deltas(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in found for choice in chunk["choices"]]


@pytest.fixture
def play(portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make a scenario with these turns that of the agent `script`."""

    def choose(*turns: Any) -> None:
        options = portico.gateway.agents.get("script").settings.options
        monkeypatch.setitem(options, "scenario", write_scenario(*turns))

    return choose


async def test_a_message_is_answered(portico: RunningGateway) -> None:
    began = int(time.time())
    answer = (await complete(portico, "hello", model="echo")).json()
    assert began <= answer.pop("created") <= time.time()
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer == {
        "object": "chat.completion",
        "model": "echo",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 0,
            "completion_tokens": 0,
            "total_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


async def test_a_stream_has_the_documented_chunks(portico: RunningGateway, play: Callable[..., None]) -> None:
    usage = {"input_tokens": 5, "output_tokens": 7, "cache_read": 20, "cache_write": 3, "reasoning_tokens": 2}
    play([{"thinking": "Hm."}, {"text": "Hi "}, {"text": "you"}, {"usage": usage}])
    answer = await complete(portico, "hello", stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].split(";")[0] == "text/event-stream"
    found = chunks_of(answer.text)
    assert {(c["id"], c["object"], c["model"], c["created"]) for c in found} == {
        (found[0]["id"], "chat.completion.chunk", "script", found[0]["created"])
    }
    got = deltas(found)
    assert got[0] == {"role": "assistant", "content": ""}
    assert got[1] == {"reasoning_content": "Hm.", "reasoning": "Hm."}
    assert "".join(delta["content"] for delta in got[2:-1]) == "Hi you"
    assert got[-1] == {}
    *others, finish, last = found
    assert all(chunk["choices"][0]["finish_reason"] is None and chunk["usage"] is None for chunk in others)
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 28,
        "completion_tokens": 7,
        "total_tokens": 35,
        "prompt_tokens_details": {"cached_tokens": 20},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }


async def test_without_include_usage_no_chunk_has_it(portico: RunningGateway) -> None:
    found = chunks_of((await complete(portico, "hello", model="echo", stream=True)).text)
    assert all("usage" not in chunk and chunk["choices"] for chunk in found)


async def test_frames_of_one_read_are_sent_in_one_write(portico: RunningGateway, play: Callable[..., None]) -> None:
    play([{"text": "Hello"}])
    await complete(portico, "hello")
    messages = (said("hello"), said("Hello", "assistant"), said("again"))
    async with portico.client.stream("POST", PATH, json=body(*messages, stream=True)) as answer:
        parts = [part async for part in answer.aiter_raw()]
    assert b"".join(parts).count(b"data: ") == 4
    # The end of the run may be read with the text, or after it.
    assert len(parts) <= 2 and parts[0].count(b"data: ") >= 2


@pytest.mark.parametrize(("reason", "finish"), [("end_turn", "stop"), ("max_tokens", "length"), ("refusal", "content_filter")])
async def test_the_reason_of_the_end(portico: RunningGateway, play: Callable[..., None], reason: str, finish: str) -> None:
    play([{"text": "so far"}, {"stop": reason}])
    choice = (await complete(portico)).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("so far", finish)


async def test_the_conversation_goes_on_in_its_session(portico: RunningGateway, play: Callable[..., None]) -> None:
    play([REMEMBER])
    system = said([{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}], "developer")
    first = await complete(portico, system, "one")
    messages = [system, said("one"), first.json()["choices"][0]["message"], said("two")]
    second = await complete(portico, *messages, stream=True)
    assert "".join(delta.get("content", "") for delta in deltas(chunks_of(second.text))) == '["one"]'
    assert first.headers["x-portico-session"] == second.headers["x-portico-session"]
    history = await get_history(portico.client, first.headers["x-portico-session"])
    assert [m["role"] for m in history] == ["system", "user", "assistant", "user", "assistant"]


async def test_the_last_message_of_the_system_is_the_prompt_where_there_is_no_other(
    portico: RunningGateway,
) -> None:
    answer = await complete(portico, said("Be brief.", "system"), said("Say hello.", "developer"))
    history = await get_history(portico.client, answer.headers["x-portico-session"])
    assert [(m["role"], m["content"]) for m in history[:2]] == [("system", "Be brief."), ("user", "Say hello.")]


async def test_a_session_is_continued_by_its_id(portico: RunningGateway, play: Callable[..., None]) -> None:
    play([REMEMBER])
    first = await complete(portico, "one")
    named = {"X-Portico-Session": first.headers["x-portico-session"]}
    second = await portico.client.post(PATH, json=body("two"), headers=named)
    assert second.json()["choices"][0]["message"]["content"] == '["one"]'
    unknown = await portico.client.post(PATH, json=body("two"), headers={"X-Portico-Session": "sess_none"})
    assert unknown.status_code == 404 and "sess_none" in unknown.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_results_of_the_clients_tools_resume_the_run(
    portico: RunningGateway, play: Callable[..., None], stream: bool
) -> None:
    calls = {"parallel": [{"app_tool": {"id": name, "name": "weather", "input": {"in": name}}} for name in ("rome", "oslo")]}
    play([{"text": "Looking."}, calls, {"text": "{results.rome}, {results.oslo}"}])
    fields = {"tools": [WEATHER], "stream": stream}
    first = await complete(portico, "Weather?", **fields)
    functions = [{"name": "weather", "arguments": f'{{"in":"{name}"}}'} for name in ("rome", "oslo")]
    called = [{"id": name, "type": "function", "function": f} for name, f in zip(("rome", "oslo"), functions, strict=True)]
    if stream:
        found = chunks_of(first.text)
        given = [call for delta in deltas(found) for call in delta.get("tool_calls", [])]
        assert given == [{"index": n, **call} for n, call in enumerate(called)]
        assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"
    else:
        choice = first.json()["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": "Looking.", "refusal": None, "tool_calls": called}
        assert choice["finish_reason"] == "tool_calls"
    session = await portico.gateway.sessions.get(ADMINISTRATOR, first.headers["x-portico-session"])
    run = session.run
    results = [said("sun", "tool", tool_call_id="rome"), said([{"type": "text", "text": "rain"}], "tool", tool_call_id="oslo")]
    messages = [said("Weather?"), said("Looking.", "assistant", tool_calls=called), *results]
    second = await complete(portico, *messages, **fields)
    text = second.text if not stream else "".join(delta.get("content", "") for delta in deltas(chunks_of(second.text)))
    assert "sun, rain" in text
    assert session.run is run


@pytest.mark.parametrize("ask", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_of_the_agents_own_is_none_of_the_clients_tool_with_its_name(
    portico: RunningGateway, play: Callable[..., None], ask: bool, stream: bool
) -> None:
    """An answer that is over has no call that waits for its result."""
    play([{"tool_call": {"id": "own", "name": "weather", "ask": ask}}, {"text": "done"}])
    answer = await complete(portico, tools=[WEATHER], stream=stream)
    if stream:
        found = chunks_of(answer.text)
        assert not any("tool_calls" in delta for delta in deltas(found))
        assert found[-1]["choices"][0]["finish_reason"] == "stop"
    else:
        [choice] = answer.json()["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "done")
        assert "tool_calls" not in choice["message"]


async def test_tool_choice_none_refuses_calls_and_keeps_the_agent(portico: RunningGateway, play: Callable[..., None]) -> None:
    play([{"app_tool": {"id": "sky", "name": "weather"}}, {"text": "no"}])
    first = await complete(portico, tools=[WEATHER], tool_choice="none")
    choice = first.json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("no", "stop")
    assert choice["message"]["reasoning_content"] == "\n[weather]\n"
    (session,) = portico.gateway.sessions.held
    agent = session.live
    message = {"role": "assistant", "content": "no"}
    second = await complete(portico, "hello", message, "again", tools=[WEATHER], tool_choice="auto")
    assert second.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert session.live is agent


async def test_the_agent_of_a_title_ends_with_it(portico: RunningGateway) -> None:
    await complete(portico, "hello", model="echo")
    await complete(portico, "### Task:\nWrite a title.", model="echo")
    conversation, title = portico.gateway.sessions.held
    await wait_until(lambda: title.live is None)
    assert conversation.live is not None


async def test_the_newest_messages_of_a_named_conversation_continue_it(
    portico: RunningGateway, play: Callable[..., None]
) -> None:
    play([REMEMBER])
    portico.client.headers["X-OpenWebUI-Chat-Id"] = "c1"
    await complete(portico, "one")
    await complete(portico, "one", said("[]", "assistant"), "two")
    third = await complete(portico, "two", said('["one"]', "assistant"), "three")
    assert third.json()["choices"][0]["message"]["content"] == '["one", "two"]'


async def test_calls_without_text_have_no_content(portico: RunningGateway, play: Callable[..., None]) -> None:
    play([{"app_tool": {"id": "sky", "name": "weather"}}])
    message = (await complete(portico, tools=[WEATHER])).json()["choices"][0]["message"]
    assert message["content"] is None and message["tool_calls"][0]["function"]["arguments"] == "{}"


async def test_images_are_given_to_the_agent(portico: RunningGateway) -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}]
    answer = await complete(portico, said(parts))
    assert answer.headers["x-portico-ignored"] == "messages.content.image_url.detail"
    content = (await get_history(portico.client, answer.headers["x-portico-session"]))[0]["content"]
    assert content == [{"type": "text", "text": "What is it?"}, {"type": "image", "url": PIXEL}]


async def test_what_is_ignored_is_said(portico: RunningGateway) -> None:
    ignored = {
        "temperature": 0,
        "max_tokens": 10,
        "stop": ["x"],
        "seed": 1,
        "logit_bias": {"1": 2},
        "store": True,
        "parallel_tool_calls": False,
        "reasoning_effort": "high",
        "x_new": 1,
    }
    nothing = {
        "top_p": None,
        "n": 1,
        "logprobs": False,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "stop": ["x"],
    }
    asked = {**nothing, **ignored, "stream_options": {"include_obfuscation": True}}
    message = said("hello", name="Ann", content=[{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}])
    answer = await complete(portico, message, model="echo", **asked)
    assert set(answer.headers["x-portico-ignored"].split(", ")) == {
        *ignored,
        "stream_options.include_obfuscation",
        "messages.name",
        "messages.content.cache_control",
    }
    assert "x-portico-ignored" not in (await complete(portico, "hello", model="echo", user="ann", stream=False)).headers


async def test_the_effort_is_the_agents_option_where_it_lists_that_value(portico: RunningGateway) -> None:
    # It waits for the probes of the start, whose results would replace this one.
    await portico.client.get("/v1/drivers")
    agent = portico.gateway.agents.get("script")
    agent.apply_probe(Probe(efforts=("low", "high"), options=(Option(EFFORT_OPTION, "Effort", "How much it thinks."),)))
    answer = await complete(portico, reasoning_effort="high")
    assert "x-portico-ignored" not in answer.headers
    session = await portico.gateway.sessions.get(ADMINISTRATOR, answer.headers["x-portico-session"])
    assert session.config.options == {EFFORT_OPTION: "high"}
    answer = await complete(portico, reasoning_effort="xhigh")
    assert answer.headers["x-portico-ignored"] == "reasoning_effort"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{"name": "x"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"messages": []}, "messages"),
        ({"messages": [said("x", "function")]}, "messages.0.role"),
        ({"messages": [said(7)]}, "messages.0.content"),
        ({"messages": [said(None)]}, "messages.0.content"),
        ({"messages": [said([{"type": "picture", "picture": {}}])]}, "messages.0.content.0.type"),
        ({"messages": [said([{"type": "file", "file": {}}], "system")]}, "messages.0.content.0.type"),
        ({"messages": [said([{"type": "text"}])]}, "messages.0.content.0.text"),
        ({"messages": [said([{"type": "image_url", "image_url": "x"}])]}, "messages.0.content.0.image_url.url"),
        ({"messages": [said([{"type": "image_url", "image_url": {"url": PIXEL}}], "system")]}, "messages.0.content.0.type"),
        ({"messages": [said("x"), said("y", "tool")]}, "messages.1.tool_call_id"),
        ({"messages": [said("x", tool_call_id="y")]}, "messages.0.tool_call_id"),
        ({"messages": [said("x", refusal="y")]}, "messages.0.refusal"),
        ({"messages": [said("x"), said("y", "assistant", function_call={"name": "z"}), said("x")]}, "messages.1.function_call"),
        ({"messages": [said("x"), said("y", "assistant", audio={"id": "z"}), said("x")]}, "messages.1.audio"),
        ({"messages": [said("x"), said("y", "assistant")]}, "messages"),
        ({"model": ""}, "model"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(portico: RunningGateway, fields: dict[str, Any], param: str) -> None:
    answer = await portico.client.post(PATH, json={**body(), **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert error["message"].startswith(f"{param}: ")
    assert answer.headers["x-should-retry"] == "false"


def test_every_refused_field_has_a_test() -> None:
    marks = test_what_is_not_supported_is_refused_by_name.pytestmark  # type: ignore[attr-defined]
    cases = next(mark for mark in marks if mark.name == "parametrize").args[1]
    assert REFUSED.keys() <= {param for _, param in cases}


@pytest.mark.parametrize("arguments", ["[1]", "{", '"x"', "NaN"])
async def test_arguments_must_be_a_json_object(portico: RunningGateway, arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [said("x"), said(None, "assistant", tool_calls=[call]), said("y", "tool", tool_call_id="c")]
    answer = await portico.client.post(PATH, json=body(*messages))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages.1.tool_calls.0.function.arguments"


async def test_an_unknown_model_is_not_found(portico: RunningGateway) -> None:
    answer = await portico.client.post(PATH, json=body(model="gpt-4o"))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "echo" in error["message"]


@pytest.mark.parametrize(
    "headers", [{"authorization": "Bearer wrong"}, {"authorization": ""}, {"x-api-key": "wrong", "authorization": ""}]
)
async def test_a_wrong_key(portico: RunningGateway, headers: dict[str, str]) -> None:
    answer = await portico.client.post(PATH, json=body(), headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (401, "authentication_error", "invalid_api_key")


@pytest.mark.parametrize(
    ("method", "headers", "content", "status", "kind"),
    [
        ("POST", {"host": "elsewhere.example"}, b"{}", 403, "permission_error"),
        ("POST", {"origin": "https://elsewhere.example"}, b"{}", 403, "permission_error"),
        ("POST", {"content-type": "text/plain"}, b"{}", 415, "invalid_request_error"),
        ("POST", {"content-type": "application/json"}, b"{", 400, "invalid_request_error"),
        ("POST", {"content-type": "application/json"}, b" " * 3000, 413, "invalid_request_error"),
        ("PUT", {}, b"", 405, "invalid_request_error"),
    ],
)
async def test_errors_before_the_request_is_read_have_the_same_shape(
    tmp_path: Path, method: str, headers: dict[str, str], content: bytes, status: int, kind: str
) -> None:
    async with run_gateway(gateway_config(tmp_path, server={"max_body": 2000})) as portico:
        answer = await portico.client.request(method, PATH, content=content, headers=headers)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (status, kind)
        assert error.keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/completions", "/v1/images/generations", "/v1/audio/speech"])
async def test_what_is_not_served_has_an_error_that_clients_can_read(portico: RunningGateway, path: str) -> None:
    answer = await portico.client.post(path, json={"model": "echo"})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"].startswith(f"POST {path}: not found here")
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_the_key_as_x_api_key(portico: RunningGateway) -> None:
    async with httpx.AsyncClient(base_url=portico.url) as client:
        answer = await client.post(PATH, json=body(model="echo"), headers={"x-api-key": KEY})
    assert answer.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_that_fails_at_once_is_an_error_response(
    portico: RunningGateway, play: Callable[..., None], stream: bool
) -> None:
    play([{"stop": {"reason": "error", "message": "the model is down"}}])
    answer = await portico.client.post(PATH, json=body(stream=stream))
    assert answer.status_code == 502
    assert answer.json() == {"error": {"message": "the model is down", "type": "server_error", "param": None, "code": None}}
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["x-portico-session"].startswith("sess_")


async def test_a_run_that_fails_later_is_an_error_in_the_stream(portico: RunningGateway, play: Callable[..., None]) -> None:
    play([{"text": "half"}, {"stop": {"reason": "error", "message": "the model is down"}}])
    found = chunks_of((await complete(portico, stream=True)).text)
    assert found[-1]["error"]["message"] == "the model is down"
    assert "".join(delta.get("content", "") for delta in deltas(found[:-1])) == "half"
    assert all(choice["finish_reason"] is None for chunk in found[:-1] for choice in chunk["choices"])
    assert (await portico.client.post(PATH, json=body())).status_code == 502


async def test_a_slow_answer_begins_with_comments(tmp_path: Path, write_scenario: WriteScenario, clock: ManualClock) -> None:
    scenario = write_scenario([{"wait_for_file": "go"}, {"text": "done"}])
    agents = {"script": {"driver": "script", "cwd": str(tmp_path / "scenes"), "options": {"scenario": scenario}}}
    async with run_gateway(gateway_config(tmp_path, agents=agents, server={"keep_alive": 0.7}), clock) as portico:
        asking = asyncio.create_task(portico.client.post(PATH, json=body(stream=True)))
        # The response begins; two comments follow.
        for _ in range(3):
            await clock.expire(0.7)
        (tmp_path / "scenes" / "go").touch()
        answer = await asking
    assert answer.status_code == 200 and answer.text.count(": keep-alive\n\n") == 2
    assert deltas(chunks_of(answer.text))[1] == {"content": "done"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_disconnects_stops_the_run(portico: RunningGateway, play: Callable[..., None], stream: bool) -> None:
    play([{"text": "half"}, {"hang": True}])
    sending = asyncio.create_task(portico.client.post(PATH, json=body(stream=stream)))
    await wait_until(lambda: any(session.busy for session in portico.gateway.sessions.held))
    (session,) = portico.gateway.sessions.held
    sending.cancel()
    await wait_until(lambda: not session.busy)


async def test_a_stopped_answer_is_continued(portico: RunningGateway, play: Callable[..., None]) -> None:
    play([{"text": "half"}, {"hang": True}], [REMEMBER])
    got = b""
    async with portico.client.stream("POST", PATH, json=body("one", stream=True)) as answer:
        session = answer.headers["x-portico-session"]
        async for part in answer.aiter_raw():
            got += part
            if b'"content":"half"' in got:
                break
    (held,) = portico.gateway.sessions.held
    await wait_until(lambda: not held.busy)
    second = await complete(portico, "one", said("half", "assistant"), "two")
    assert second.headers["x-portico-session"] == session
    assert second.json()["choices"][0]["message"]["content"] == '["one"]'
