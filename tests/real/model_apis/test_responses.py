"""`/v1/responses` by OpenAI's packages for Python and Node, and by the AI SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import Home
from tests.real.model_apis.clients import run_node, run_python
from tests.real.processes import cli_of
from tests.support.daemon import RunningGateway, gateway_config, run_gateway

USAGE = {"usage": {"input_tokens": 20, "cache_read": 100, "output_tokens": 18}}
CALL = {"app_tool": {"id": "sky", "name": "weather", "input": {"city": "Rome"}}}
FAILS = {"stop": {"reason": "error", "message": "the model is down"}}
SCENES: dict[str, list[Any]] = {
    "script": [
        {"when": "^Weather", "steps": [{"text": "Looking. "}, CALL, {"text": "It is {results.sky}."}]},
        {"when": "one|two|three|uno|due", "steps": [{"remember": True}]},
        {"steps": [{"thinking": "Hm."}, {"text": "You said: "}, {"text": "{prompt}"}, USAGE]},
    ],
    "waiting": [{"steps": [{"text": "One. "}, {"wait_for_file": "go"}, {"text": "Two."}]}],
    "hanging": [{"steps": [{"text": "One. "}, {"hang": True}]}],
    "failing": [{"steps": [FAILS]}],
    "failing_later": [{"steps": [{"text": "half"}, FAILS]}],
}


@pytest.fixture
async def scripted(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway with an agent for each scene."""
    scenes = tmp_path / "scenes"
    scenes.mkdir()
    for name, turns in SCENES.items():
        (scenes / f"{name}.json").write_text(json.dumps({"turns": turns}))
    agents = {name: {"driver": "script", "cwd": str(scenes), "options": {"scenario": f"{name}.json"}} for name in SCENES}
    async with run_gateway(gateway_config(tmp_path, agents=agents)) as running:
        yield running


async def test_python_creates_retrieves_and_deletes(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await run_python("responses_openai.py", "create", scripted.url, tmp_path)
    assert found.pop("session").startswith("sess_")
    assert found == {
        "text": "You said: hello",
        "types": ["ResponseReasoningItem", "ResponseOutputMessage"],
        "usage": {"input_tokens": 120, "output_tokens": 18, "total_tokens": 138},
        "status": "completed",
        "metadata": {"a": "b"},
        "same": True,
        "input": ["hello"],
        "gone": "invalid_request_error",
    }


async def test_python_streams(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await run_python("responses_openai.py", "stream", scripted.url, tmp_path)
    assert found.pop("kinds") == [
        "ResponseCreatedEvent", "ResponseInProgressEvent",
        "ResponseOutputItemAddedEvent", "ResponseReasoningSummaryPartAddedEvent", "ResponseReasoningSummaryTextDeltaEvent",
        "ResponseReasoningSummaryTextDoneEvent", "ResponseReasoningSummaryPartDoneEvent", "ResponseOutputItemDoneEvent",
        "ResponseOutputItemAddedEvent", "ResponseContentPartAddedEvent", "ResponseTextDeltaEvent", "ResponseTextDeltaEvent",
        "ResponseTextDoneEvent", "ResponseContentPartDoneEvent", "ResponseOutputItemDoneEvent", "ResponseCompletedEvent",
    ]  # fmt: skip
    assert found == {"text": "You said: hello", "thoughts": "Hm.", "in_order": True, "final": "You said: hello"}


async def test_python_puts_a_stream_together(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await run_python("responses_openai.py", "stream_helper", scripted.url, tmp_path)
    assert (found["output"], found["text"]) == (["message", "function_call"], "Looking. ")
    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= set(found["kinds"])


async def test_python_calls_tools(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await run_python("responses_openai.py", "tools", scripted.url, tmp_path)
    assert found == {
        "first": "Looking. ",
        "call": ["weather", '{"city":"Rome"}'],
        "second": "It is sun in Rome.",
        "fourth": "It is sun in Rome.",
    }
    # Each of the two conversations was one run of one session.
    assert len((await scripted.client.get("/sessions")).json()["sessions"]) == 2


async def test_python_continues_responses_and_conversations(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await run_python("responses_openai.py", "chain", scripted.url, tmp_path)
    assert found == {
        "texts": ["[]", '["one"]', '["one", "two"]'],
        "one_session": True,
        "named": '["uno"]',
        "conversation": True,
    }


async def test_python_works_in_the_background(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await run_python("responses_openai.py", "background", scripted.url, tmp_path)
    assert found == {
        "busy": "in_progress",
        "text": "One. Two.",
        "first": "in_progress",
        "polled": ["completed", "One. Two."],
        "cancelled": ["cancelled", "cancelled"],
    }


async def test_python_gets_errors(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await run_python("responses_openai.py", "errors", scripted.url, tmp_path)
    kinds = {name: kind for name, (kind, *_) in found.items() if name not in ("later", "later_stream")}
    assert kinds == {
        "key": "AuthenticationError",
        "model": "NotFoundError",
        "previous": "NotFoundError",
        "failing": "InternalServerError",
        "failing_stream": "InternalServerError",
    }
    assert found["previous"][2:] == ["previous_response_not_found", "previous_response_id"]
    assert "the model is down" in found["failing"][1]
    assert found["later"] == ["failed", "the model is down", "half"]
    assert found["later_stream"] == "response.failed"
    # Nothing was sent again: two runs failed at once, and two later.
    assert len((await scripted.client.get("/sessions")).json()["sessions"]) == 4


async def test_python_sends_images_and_many_requests_at_once(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await run_python("responses_openai.py", "images", scripted.url, tmp_path)
    assert found["text"].startswith("You said: What is it?")
    found = await run_python("responses_openai.py", "concurrent", scripted.url, tmp_path)
    assert found == [f'["t{n} one"]' for n in range(4)]


async def test_node_creates_and_streams(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await run_node("responses_openai.mjs", "create", scripted.url, tmp_path)
    assert found.pop("session").startswith("sess_")
    assert found == {"text": "You said: hello", "types": ["reasoning", "message"], "again": "You said: hello"}
    found = await run_node("responses_openai.mjs", "stream", scripted.url, tmp_path)
    assert found == {"text": "You said: hello", "final": "You said: hello", "status": "completed"}


async def test_node_calls_tools_and_works_in_the_background(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await run_node("responses_openai.mjs", "tools", scripted.url, tmp_path)
    assert found == {"first": "Looking. ", "second": "It is sun in Rome."}
    assert len((await scripted.client.get("/sessions")).json()["sessions"]) == 1
    found = await run_node("responses_openai.mjs", "background", scripted.url, tmp_path)
    assert found == {"begun": "in_progress", "cancelled": "cancelled"}


async def test_node_gets_errors(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await run_node("responses_openai.mjs", "errors", scripted.url, tmp_path)
    assert found["gpt-5"][:2] == [404, "NotFoundError"]
    assert found["failing"] == [502, "InternalServerError", "the model is down"]
    assert len((await scripted.client.get("/sessions")).json()["sessions"]) == 1


async def test_the_ai_sdk_generates_and_streams(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await run_node("responses_ai_sdk.mjs", "generate", scripted.url, tmp_path)
    assert found == {"text": "You said: hello", "reasoningText": "Hm.", "output": 18, "finishReason": "stop"}
    found = await run_node("responses_ai_sdk.mjs", "stream", scripted.url, tmp_path)
    assert found == {"text": "You said: hello", "reasoningText": "Hm.", "finishReason": "stop"}


async def test_the_ai_sdk_calls_tools_in_one_run(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await run_node("responses_ai_sdk.mjs", "tools", scripted.url, tmp_path)
    assert found == {"text": "It is sun in Rome.", "steps": 2, "sessions": 1}


async def test_the_ai_sdk_sends_earlier_answers_by_reference(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await run_node("responses_ai_sdk.mjs", "turns", scripted.url, tmp_path)
    assert found == {"texts": ["[]", '["one"]', '["one", "two"]'], "references": 2, "sessions": 1}


async def test_the_ai_sdk_gets_errors(scripted: RunningGateway, tmp_path: Path) -> None:
    found = await run_node("responses_ai_sdk.mjs", "errors", scripted.url, tmp_path)
    assert (found["message"], found["status"], found["text"]) == ("the model is down", 502, "half")
    assert found["requests"] == 1
    assert found["later"] == ["the model is down"]


async def test_one_process_of_the_real_claude_answers_a_chain(portico: RunningGateway, home: Home, tmp_path: Path) -> None:
    found = await run_python("responses_openai.py", "claude", portico.url, tmp_path)
    assert found == {
        "texts": ["Asking. ", "It is mild in Tokyo.", "I see 2 user texts. Before this one: [[weather]] please"],
        "call": ["get_weather", {"location": "Tokyo"}],
        "sessions": 1,
        "usage": 100 + 7,
    }
    cli_of(home.path)
