"""`POST /v1/chat/completions`: the JSON object, the chunks of a stream, tools, errors, and what is not supported."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

from gateway.protocols.model_apis.chat_completions_request import REFUSED
from tests.support.daemon import RunningGateway
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
    # Without include usage no chunk has it.
    found = chunks_of((await complete(portico, "hello", model="echo", stream=True)).text)
    assert all("usage" not in chunk and chunk["choices"] for chunk in found)
    # The last message of the system is the prompt where there is no other.
    answer = await complete(portico, said("Be brief.", "system"), said("Say hello.", "developer"))
    history = await get_history(portico.client, answer.headers["x-portico-session"])
    assert [(m["role"], m["content"]) for m in history[:2]] == [("system", "Be brief."), ("user", "Say hello.")]


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


async def test_frames_of_one_read_are_sent_in_one_write(portico: RunningGateway, play: Callable[..., None]) -> None:
    play([{"text": "Hello"}])
    await complete(portico, "hello")
    messages = (said("hello"), said("Hello", "assistant"), said("again"))
    async with portico.client.stream("POST", PATH, json=body(*messages, stream=True)) as answer:
        parts = [part async for part in answer.aiter_raw()]
    assert b"".join(parts).count(b"data: ") == 4
    # The end of the run may be read with the text, or after it.
    assert len(parts) <= 2 and parts[0].count(b"data: ") >= 2


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


async def test_calls_without_text_and_calls_that_are_refused(portico: RunningGateway, play: Callable[..., None]) -> None:
    # Calls without text have no content.
    play([{"app_tool": {"id": "sky", "name": "weather"}}])
    message = (await complete(portico, tools=[WEATHER])).json()["choices"][0]["message"]
    assert message["content"] is None and message["tool_calls"][0]["function"]["arguments"] == "{}"
    # One that is refused is shown.
    play([{"app_tool": {"id": "sky", "name": "weather"}}, {"text": "no"}])
    first = await complete(portico, tools=[WEATHER], tool_choice="none")
    assert first.json()["choices"][0]["message"]["reasoning_content"] == "\n[weather]\n"


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


REFUSED_FIELDS: list[Any] = [
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
]


async def test_what_is_not_supported_or_known_is_refused_by_name(portico: RunningGateway) -> None:
    assert REFUSED.keys() <= {param for _, param in REFUSED_FIELDS}
    for fields, param in REFUSED_FIELDS:
        answer = await portico.client.post(PATH, json={**body(), **fields})
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error
        assert error["message"].startswith(f"{param}: "), (fields, param)
        assert answer.headers["x-should-retry"] == "false", (fields, param)
    # Arguments must be a JSON object.
    for arguments in ("[1]", "{", '"x"', "NaN"):
        call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        messages = [said("x"), said(None, "assistant", tool_calls=[call]), said("y", "tool", tool_call_id="c")]
        answer = await portico.client.post(PATH, json=body(*messages))
        assert answer.status_code == 400, arguments
        assert answer.json()["error"]["param"] == "messages.1.tool_calls.0.function.arguments", arguments
    # An unknown model is not found.
    answer = await portico.client.post(PATH, json=body(model="gpt-4o"))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "echo" in error["message"]
    # What is not served has an error that clients can read.
    for path in ("/v1/embeddings", "/v1/completions", "/v1/images/generations", "/v1/audio/speech"):
        answer = await portico.client.post(path, json={"model": "echo"})
        assert answer.status_code == 404, path
        assert answer.json()["error"]["message"].startswith(f"POST {path}: not found here"), path
        assert answer.json()["error"]["type"] == "invalid_request_error", path
