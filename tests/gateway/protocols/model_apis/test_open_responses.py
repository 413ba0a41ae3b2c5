"""The cases of the Open Responses compliance suite (openresponses/openresponses, src/lib/compliance-tests.ts, 2026-11).

That suite runs against a model. Here the agent `script` plays it, and the requests and the checks are the suite's: a response
has all required fields of the schema `ResponseResource` with values of their types, and what each case asks for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.daemon import RunningGateway
from tests.support.sse import typed_events

Json = dict[str, Any]
NUMBER, TEXT, NONE = (int, float), str, type(None)
REQUIRED: dict[str, Any] = {
    "id": TEXT, "object": TEXT, "created_at": int, "completed_at": (int, NONE), "status": TEXT, "model": TEXT,
    "incomplete_details": (dict, NONE), "previous_response_id": (str, NONE), "instructions": (str, list, NONE), "output": list,
    "error": (dict, NONE), "tools": list, "tool_choice": (str, dict), "truncation": TEXT, "parallel_tool_calls": bool,
    "text": dict, "top_p": NUMBER, "presence_penalty": NUMBER, "frequency_penalty": NUMBER, "top_logprobs": int,
    "temperature": NUMBER,
    "reasoning": (dict, NONE), "user": (str, NONE), "usage": (dict, NONE), "max_output_tokens": (int, NONE),
    "max_tool_calls": (int, NONE), "store": bool, "background": bool, "service_tier": TEXT, "metadata": dict,
    "safety_identifier": (str, NONE), "prompt_cache_key": (str, NONE),
}  # fmt: skip
ITEMS: dict[str, dict[str, Any]] = {
    "message": {"id": TEXT, "status": TEXT, "role": TEXT, "content": list},
    "function_call": {"id": TEXT, "call_id": TEXT, "name": TEXT, "arguments": TEXT, "status": TEXT},
    "reasoning": {"id": TEXT, "summary": list},
}
ITEM_FIELDS = {"item_id": TEXT, "output_index": int}
EVENTS: dict[str, dict[str, Any]] = {
    "response.created": {"response": dict},
    "response.in_progress": {"response": dict},
    "response.completed": {"response": dict},
    "response.output_item.added": {"output_index": int, "item": dict},
    "response.output_item.done": {"output_index": int, "item": dict},
    "response.content_part.added": {**ITEM_FIELDS, "content_index": int, "part": dict},
    "response.content_part.done": {**ITEM_FIELDS, "content_index": int, "part": dict},
    "response.output_text.delta": {**ITEM_FIELDS, "content_index": int, "delta": TEXT, "logprobs": list},
    "response.output_text.done": {**ITEM_FIELDS, "content_index": int, "text": TEXT, "logprobs": list},
    "response.function_call_arguments.delta": {**ITEM_FIELDS, "delta": TEXT},
    "response.function_call_arguments.done": {**ITEM_FIELDS, "arguments": TEXT},
    "response.reasoning_summary_part.added": {**ITEM_FIELDS, "summary_index": int, "part": dict},
    "response.reasoning_summary_part.done": {**ITEM_FIELDS, "summary_index": int, "part": dict},
    "response.reasoning_summary_text.delta": {**ITEM_FIELDS, "summary_index": int, "delta": TEXT},
    "response.reasoning_summary_text.done": {**ITEM_FIELDS, "summary_index": int, "text": TEXT},
}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
CALL = {"app_tool": {"name": "get_weather", "input": {"location": "San Francisco"}}}
TURNS = [
    {"when": "weather", "steps": [{"thinking": "The tool knows."}, CALL, {"text": "It is {last_result}."}]},
    {"when": "What is my name|Do you remember", "steps": [{"remember": True}]},
    {"steps": [{"thinking": "Hm."}, {"text": "You said: "}, {"text": "{prompt}"}]},
]
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"


def message(role: str, content: Any) -> Json:
    return {"type": "message", "role": role, "content": content}


CASES: dict[str, Json] = {
    "basic-response": {"input": [message("user", "Say hello in exactly 3 words.")]},
    "streaming-response": {"input": [message("user", "Count from 1 to 5.")], "stream": True},
    "system-prompt": {"input": [message("system", "You are a pirate."), message("user", "Say hello.")]},
    "tool-calling": {"input": [message("user", "What's the weather like in San Francisco?")], "tools": [WEATHER]},
    "tool-calling-streaming": {
        "input": [message("user", "What's the weather like in San Francisco?")],
        "tools": [WEATHER],
        "stream": True,
    },
    "image-input": {
        "input": [
            message("user", [{"type": "input_text", "text": "What do you see?"}, {"type": "input_image", "image_url": PIXEL}])
        ]
    },
    "multi-turn": {
        "input": [
            message("user", "My name is Alice."),
            message("assistant", "Hello Alice! How can I help you today?"),
            message("user", "What is my name?"),
        ]
    },
}


def check_fields(value: Json, fields: dict[str, Any]) -> None:
    for name, kind in fields.items():
        assert name in value, (name, value)
        assert isinstance(value[name], kind) and not (kind is int and isinstance(value[name], bool)), (name, value)


def check_response(response: Json) -> None:
    """Check a complete response as the schema does."""
    check_fields(response, REQUIRED)
    assert response["object"] == "response" and response["status"] == "completed" and response["output"]
    for item in response["output"]:
        check_fields(item, ITEMS[item["type"]])
        for part in item.get("content", ()):
            check_fields(part, {"type": TEXT, "text": TEXT, "annotations": list, "logprobs": list})
    for tool in response["tools"]:
        assert tool.keys() >= {"type", "name", "description", "parameters", "strict"}
    usage = response["usage"]
    check_fields(usage, {"input_tokens": int, "output_tokens": int, "total_tokens": int})
    check_fields(usage["input_tokens_details"], {"cached_tokens": int})
    check_fields(usage["output_tokens_details"], {"reasoning_tokens": int})


def check_stream(text: str) -> list[Json]:
    """Check each event of a stream, and return them."""
    events = typed_events(text)
    for event in events:
        check_fields(event, {**EVENTS[event["type"]], "sequence_number": int})
    return events


async def test_the_cases(portico: RunningGateway, play: Callable[..., None]) -> None:
    play(*TURNS)
    for case, request in CASES.items():
        answer = await portico.client.post("/v1/responses", json={"model": "script", **request})
        assert answer.status_code == 200, answer.text
        events = check_stream(answer.text) if request.get("stream") else []
        response = events[-1]["response"] if events else answer.json()
        check_response(response)
        assert ("function_call" in [item["type"] for item in response["output"]]) == ("tools" in request), case
        if "tools" in request and events:
            seen = {event["type"] for event in events}
            assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= seen
            for name in ("added", "done"):
                items = [event["item"]["type"] for event in events if event["type"] == f"response.output_item.{name}"]
                assert "function_call" in items
        if case == "multi-turn":
            assert "My name is Alice." in json.dumps(response["output"])


async def test_tool_round_trip_and_previous_response_id(portico: RunningGateway, play: Callable[..., None]) -> None:
    play(*TURNS)
    body: Json = {"model": "script", **CASES["tool-calling"]}
    first = (await portico.client.post("/v1/responses", json=body)).json()
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    assert json.loads(call["arguments"]) == {"location": "San Francisco"}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    # All items again, without an id.
    whole = {**body, "input": [*body["input"], *first["output"], output]}
    second = (await portico.client.post("/v1/responses", json=whole)).json()
    check_response(second)
    assert second["output"][-1]["content"][0]["text"] == "It is sunny."
    follow = {"model": "script", "input": "Do you remember?", "previous_response_id": second["id"]}
    third = (await portico.client.post("/v1/responses", json=follow)).json()
    check_response(third)
    assert third["previous_response_id"] == second["id"]
    assert "weather like in San Francisco" in third["output"][-1]["content"][0]["text"]
