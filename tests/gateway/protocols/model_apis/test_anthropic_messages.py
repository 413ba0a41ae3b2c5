"""Anthropic's Messages API: answers, streams, tools, images, what is ignored and what is refused, failures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from drivers.contract.driver_info import Probe
from drivers.contract.events import Error, SessionEnd
from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.events.event_log import Entry
from gateway.protocols.model_apis.answer import Answer
from gateway.protocols.model_apis.anthropic_messages_response import SIGNATURE
from gateway.protocols.model_apis.models import effort_options, find_model
from gateway.protocols.model_apis.running_answer import failure_of
from gateway.security.authentication import ADMINISTRATOR
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import get_history
from tests.support.sse import named_data, parse
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
WEATHER = {"name": "weather", "description": "The weather.", "input_schema": {"type": "object"}}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
Event = tuple[str, dict[str, Any]]


@asynccontextmanager
async def scripted(
    tmp_path: Path, write_scenario: WriteScenario, *turns: Any, clock: Clock = SYSTEM_CLOCK, **tables: Any
) -> AsyncIterator[RunningGateway]:
    """A gateway whose agent `script` plays these turns."""
    options = {"scenario": write_scenario(*turns)}
    agent = {"driver": "script", "cwd": str(tmp_path / "scenes"), "options": options}
    async with run_gateway(gateway_config(tmp_path, agents={"script": agent}, **tables), clock) as portico:
        yield portico


def body(*messages: Any, model: str = "script", **fields: Any) -> dict[str, Any]:
    """A request. Strings are messages of the user."""
    given = [{"role": "user", "content": message} if isinstance(message, str) else message for message in messages or ("hi",)]
    return {"model": model, "max_tokens": 1024, "messages": given, **fields}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*blocks]}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def result(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "x"} | fields


async def ask(portico: RunningGateway, *messages: Any, **fields: Any) -> dict[str, Any]:
    answer = await portico.client.post("/v1/messages", json=body(*messages, **fields))
    assert answer.status_code == 200, answer.text
    return {**answer.json(), "session": answer.headers["x-portico-session"]}


async def refused(portico: RunningGateway, *messages: Any, **fields: Any) -> tuple[int, str, str]:
    answer = await portico.client.post("/v1/messages", json=body(*messages, **fields))
    assert answer.json()["type"] == "error"
    return answer.status_code, answer.json()["error"]["type"], answer.json()["error"]["message"]


async def stream(portico: RunningGateway, *messages: Any, **fields: Any) -> list[Event]:
    answer = await portico.client.post("/v1/messages", json=body(*messages, stream=True, **fields))
    assert answer.status_code == 200, answer.text
    return events_of(answer.text)


def events_of(text: str) -> list[Event]:
    """The events of a stream, without the pings. The name of each is the type of its data."""
    events = [(event.pop("type"), event) for event in named_data(parse(text))]
    return [event for event in events if event[0] != "ping"]


def text_of(message: dict[str, Any]) -> str:
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


ASKS = [
    {"thinking": "Let me look."},
    {"text": "Looking. "},
    {"app_tool": {"id": "sky", "name": "weather", "input": {"in": "Rome"}}},
    {"usage": {"input_tokens": 5, "output_tokens": 7, "cache_read": 3, "cache_write": 2, "reasoning_tokens": 4}},
    {"text": "It is {results.sky}."},
]
USAGE = {
    "input_tokens": 5,
    "cache_creation_input_tokens": 2,
    "cache_read_input_tokens": 3,
    "output_tokens": 7,
    "output_tokens_details": {"thinking_tokens": 4},
}
NO_USAGE = {"input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0}


async def test_an_answer_is_a_message(portico: RunningGateway) -> None:
    answer = await portico.client.post("/v1/messages", json=body("hello", model="echo"))
    message = answer.json()
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "echo",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": NO_USAGE,
    }
    assert answer.headers["x-portico-ignored"] == "max_tokens"
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


async def test_a_conversation_continues_its_session(tmp_path: Path, write_scenario: WriteScenario) -> None:
    async with scripted(tmp_path, write_scenario, [{"remember": True}]) as portico:
        first = await ask(portico, "one", system="Be brief.")
        reply = assistant(first["content"])
        second = await ask(portico, "one", reply, "two", system=[{"type": "text", "text": "Be brief."}])
        assert (text_of(second), second["session"]) == ('["one"]', first["session"])
        # Another system prompt is another conversation.
        third = await ask(portico, "one", reply, "two", system="Be long.")
        assert third["session"] != first["session"]
        named = await portico.client.post("/v1/messages", json=body("three"), headers={"X-Portico-Session": second["session"]})
        assert (text_of(named.json()), named.headers["x-portico-session"]) == ('["one", "two"]', second["session"])


async def test_the_events_of_a_stream(tmp_path: Path, write_scenario: WriteScenario) -> None:
    async with scripted(tmp_path, write_scenario, ASKS) as portico:
        events = await stream(portico, tools=[WEATHER], thinking={"type": "enabled", "budget_tokens": 2048})
    message_start = events[0][1]["message"]
    assert (message_start["role"], message_start["model"], message_start["content"], message_start["usage"]) == (
        "assistant", "script", [], NO_USAGE,
    )  # fmt: skip
    assert events[0][0] == "message_start" and message_start["stop_reason"] is None
    assert _joined(events[1:]) == [
        ("content_block_start", {"index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}}),
        ("content_block_delta", {"index": 0, "delta": {"type": "thinking_delta", "thinking": "Let me look."}}),
        ("content_block_delta", {"index": 0, "delta": {"type": "signature_delta", "signature": SIGNATURE}}),
        ("content_block_stop", {"index": 0}),
        ("content_block_start", {"index": 1, "content_block": {"type": "text", "text": ""}}),
        ("content_block_delta", {"index": 1, "delta": {"type": "text_delta", "text": "Looking. "}}),
        ("content_block_stop", {"index": 1}),
        ("content_block_start", {"index": 2, "content_block": {"type": "tool_use", "id": "sky", "name": "weather", "input": {}}}),
        ("content_block_delta", {"index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"in":"Rome"}'}}),
        ("content_block_stop", {"index": 2}),
        ("message_delta", {"delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": NO_USAGE}),
        ("message_stop", {}),
    ]


def _joined(events: list[Event]) -> list[Event]:
    """The events with deltas of one block in a row as one."""
    found: list[Event] = []
    for name, data in events:
        last = found[-1] if found else ("", {})
        delta = data.get("delta", {})
        if name == last[0] == "content_block_delta" and delta["type"] == last[1]["delta"]["type"]:
            for field in delta.keys() - {"type"}:
                last[1]["delta"][field] += delta[field]
        else:
            found.append((name, data))
    return found


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("is_error", [True, False], ids=["error", "result"])
async def test_results_resume_the_same_run(tmp_path: Path, write_scenario: WriteScenario, streamed: bool, is_error: bool) -> None:
    async with scripted(tmp_path, write_scenario, ASKS) as portico:
        first = await ask(portico, "Weather?", tools=[WEATHER])
        call = {"type": "tool_use", "id": "sky", "name": "weather", "input": {"in": "Rome"}}
        assert (first["content"], first["stop_reason"]) == ([{"type": "text", "text": "Looking. "}, call], "tool_use")
        session = await portico.gateway.sessions.get(ADMINISTRATOR, first["session"])
        run = session.run
        content = [{"type": "text", "text": "sun", "cache_control": {"type": "ephemeral"}}]
        result = {"type": "tool_result", "tool_use_id": "sky", "content": content, "is_error": is_error}
        messages = ["Weather?", assistant(first["content"]), {"role": "user", "content": [result]}]
        expected = "It is Error: sun." if is_error else "It is sun."
        if streamed:
            events = await stream(portico, *messages, tools=[WEATHER])
            assert "".join(data["delta"]["text"] for name, data in events if name == "content_block_delta") == expected
            assert events[-2] == (
                "message_delta", {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": USAGE},
            )  # fmt: skip
        else:
            second = await ask(portico, *messages, tools=[WEATHER])
            assert (text_of(second), second["stop_reason"], second["usage"]) == (expected, "end_turn", USAGE)
            assert second["session"] == first["session"]
        assert session.run is run


async def test_calls_that_are_made_together_get_their_results_together(tmp_path: Path, write_scenario: WriteScenario) -> None:
    calls = [{"app_tool": {"id": name, "name": "weather", "input": {"in": name}}} for name in ("Rome", "Oslo")]
    turn = [{"parallel": calls}, {"text": "{results.Rome}, {results.Oslo}"}]
    async with scripted(tmp_path, write_scenario, turn) as portico:
        events = await stream(portico, "Weather?", tools=[WEATHER])
        blocks = [data["content_block"]["id"] for name, data in events if name == "content_block_start"]
        assert blocks == ["Rome", "Oslo"]
        uses = [{"type": "tool_use", "id": name, "name": "weather", "input": {"in": name}} for name in blocks]
        results = [{"type": "tool_result", "tool_use_id": name, "content": f"sun in {name}"} for name in blocks]
        last = await ask(portico, "Weather?", assistant(uses), {"role": "user", "content": results}, tools=[WEATHER])
        assert text_of(last) == "sun in Rome, sun in Oslo"


async def test_a_message_beside_results_is_put_after_them(tmp_path: Path, write_scenario: WriteScenario) -> None:
    async with scripted(tmp_path, write_scenario, {"when": "Weather", "steps": ASKS}, [{"text": "{prompt}"}]) as portico:
        first = await ask(portico, "Weather?", tools=[WEATHER])
        given = [{"type": "text", "text": "and hurry"}, {"type": "tool_result", "tool_use_id": "sky"}]
        second = await ask(
            portico,
            "Weather?",
            assistant(first["content"]),
            {"role": "user", "content": given},
            tools=[WEATHER],
        )
        assert text_of(second) == "and hurry"
        roles = [message["role"] for message in await get_history(portico.client, second["session"])]
        assert roles == ["user", "assistant", "tool", "user", "assistant"]


async def test_a_system_message_behind_results_is_part_of_the_last_one(tmp_path: Path, write_scenario: WriteScenario) -> None:
    async with scripted(tmp_path, write_scenario, ASKS) as portico:
        first = await ask(portico, "Weather?", tools=[WEATHER])
        reminder = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
        messages = ["Weather?", assistant(first["content"]), user(result(tool_use_id="sky", content="sun")), reminder]
        second = await ask(portico, *messages, tools=[WEATHER])
        assert (text_of(second), second["session"]) == ("It is sun\n\nBe brief..", first["session"])
        third = await ask(portico, *messages, assistant(second["content"]), "Thanks", tools=[WEATHER])
        assert third["session"] == first["session"]


async def test_thinking_is_sent_to_clients_that_want_it(portico: RunningGateway) -> None:
    for thinking, shown in (
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "adaptive", "display": "omitted"}, False),
        ({"type": "adaptive"}, True),
        ({"type": "enabled", "budget_tokens": 1024}, True),
    ):
        whole = await ask(portico, thinking=thinking)
        assert ("thinking" in [block["type"] for block in whole["content"]]) is shown
        events = await stream(portico, thinking=thinking)
        opened = [data["content_block"]["type"] for name, data in events if name == "content_block_start"]
        assert opened == [block["type"] for block in whole["content"]]
        assert [data["index"] for name, data in events if name == "content_block_start"] == list(range(len(opened)))


@pytest.mark.parametrize(
    ("thinking", "expected"), [(None, ["text"]), ({"type": "adaptive"}, ["thinking", "text", "thinking", "text"])]
)
async def test_thoughts_between_texts(
    tmp_path: Path, write_scenario: WriteScenario, thinking: dict[str, Any] | None, expected: list[str]
) -> None:
    turn = [{"thinking": "Hm."}, {"text": "one "}, {"thinking": "Well."}, {"text": "two"}]
    async with scripted(tmp_path, write_scenario, turn) as portico:
        whole = await ask(portico, thinking=thinking)
        events = await stream(portico, thinking=thinking)
    opened = [data["content_block"]["type"] for name, data in events if name == "content_block_start"]
    assert (opened, [block["type"] for block in whole["content"]]) == (expected, expected)
    assert text_of(whole) == "one two"


async def test_images(tmp_path: Path, write_scenario: WriteScenario) -> None:
    images = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
    ]
    question = {"role": "user", "content": [*images, {"type": "text", "text": "What is it?"}]}
    async with scripted(tmp_path, write_scenario, [{"text": "{images}: {prompt}"}]) as portico:
        answer = await ask(portico, question)
        assert text_of(answer) == "2: What is it?"
        history = await get_history(portico.client, answer["session"])
        assert [block["url"] for block in history[0]["content"][:2]] == [
            f"data:image/png;base64,{PIXEL}", "https://example.org/a.png",
        ]  # fmt: skip
        again = await ask(portico, question, assistant("2: What is it?"), "and?")
        assert again["session"] == answer["session"]
    async with run_gateway(gateway_config(tmp_path / "other")) as portico:
        assert (await refused(portico, question, model="echo"))[0] == 400


async def test_an_image_in_a_result(tmp_path: Path, write_scenario: WriteScenario) -> None:
    async with scripted(tmp_path, write_scenario, ASKS) as portico:
        first = await ask(portico, "Weather?", tools=[WEATHER])
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
        result = {"type": "tool_result", "tool_use_id": "sky", "content": [image]}
        answer = await ask(
            portico,
            "Weather?",
            assistant(first["content"]),
            {"role": "user", "content": [result]},
            tools=[WEATHER],
        )
        history = await get_history(portico.client, answer["session"])
        assert history[2]["content"] == [{"type": "image", "url": f"data:image/png;base64,{PIXEL}"}]


async def test_the_system_prompt(tmp_path: Path, write_scenario: WriteScenario) -> None:
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.329; cch=0a1b2;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be kind."},
    ]
    async with scripted(tmp_path, write_scenario, [{"text": "{system}"}], [{"text": "{prompt}"}]) as portico:
        first = await ask(portico, "one", system=system)
        assert text_of(first) == "Be brief.\n\nBe kind."
        # That header is not part of the conversation, and differs in each request.
        system[0]["text"] = system[0]["text"].replace("0a1b2", "ffff0")
        reply = assistant(first["content"])
        second = await ask(portico, "one", reply, {"role": "system", "content": "Now in French."}, "two", system=system)
        assert (text_of(second), second["session"]) == ("Now in French.\n\ntwo", first["session"])


async def test_only_the_billing_line_of_a_system_prompt_is_left_out(tmp_path: Path, write_scenario: WriteScenario) -> None:
    async with scripted(tmp_path, write_scenario, [{"text": "{system}"}]) as portico:
        for system, expected in (
            ("x-anthropic-billing-header: cch=0a1b2;\nBe brief.", "Be brief."),
            ("Never send\nx-anthropic-billing-header: a", "Never send\nx-anthropic-billing-header: a"),
        ):
            assert text_of(await ask(portico, "one", system=system)) == expected


async def test_messages_of_one_role_in_a_row(tmp_path: Path, write_scenario: WriteScenario) -> None:
    async with scripted(tmp_path, write_scenario, [{"text": "{prompt}"}]) as portico:
        first = await ask(portico, "one", "two")
        assert text_of(first) == "one\n\ntwo"
        divided = [assistant(text) for text in ("one", "", "two")]
        second = await ask(portico, "one", "two", *divided, "three")
        assert (text_of(second), second["session"]) == ("three", first["session"])


async def test_fields_without_effect_are_named(portico: RunningGateway) -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    text = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}, "citations": None}
    request = body(
        "one",
        assistant([thinking, text]),
        {"role": "user", "content": [text]},
        model="script",
        temperature=0.5,
        top_p=None,
        stop_sequences=["x"],
        service_tier="auto",
        metadata={"user_id": "u", "other": 1},
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "high"},
        tools=[{**WEATHER, "type": "custom", "strict": True, "cache_control": {"type": "ephemeral"}}],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        **{"näw\r\nx: y": 1},
    )
    answer = await portico.client.post("/v1/messages", json=request, headers={"anthropic-beta": "a-2026-01-01"})
    assert answer.status_code == 200
    assert answer.headers["x-portico-ignored"].split(", ") == [
        "max_tokens",
        "temperature",
        "stop_sequences",
        "service_tier",
        "n?w??x: y",
        "thinking.budget_tokens",
        "messages.content.thinking",
        "messages.content.cache_control",
        "tools.strict",
        "tools.cache_control",
        "tool_choice.disable_parallel_tool_use",
        "metadata.other",
        "output_config.effort",
        "anthropic-beta",
    ]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"system": [{"type": "image"}]}, "system.0.type"),
        ({"tools": [{"name": "weather"}]}, "tools.0.input_schema"),
        ({"tools": [WEATHER, WEATHER]}, "'weather' is taken"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type: 'some'"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: a call is required, and there are no tools"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema: missing"),
        ({"mcp_servers": [{"url": "https://example.org"}]}, "mcp_servers"),
        ({"metadata": {"user_id": 1}}, "metadata.user_id"),
    ],
)
async def test_fields_that_are_refused(portico: RunningGateway, fields: dict[str, Any], named: str) -> None:
    status, kind, text = await refused(portico, **fields)
    assert (status, kind) == (400, "invalid_request_error")
    assert named in text
    assert portico.gateway.sessions.held == []


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([], "messages"),
        ([{"role": "tool", "content": "x"}], "messages.0.role"),
        ([{"role": "user", "content": 1}], "messages.0.content"),
        ([user({"type": "tool_reference"})], "messages.0.content.0.type: content of type 'tool_reference'"),
        ([user({"type": "text"})], "messages.0.content.0.text"),
        ([user({"type": "image", "source": {"type": "file"}})], "messages.0.content.0.source.type"),
        ([user({"type": "image", "source": "x"})], "messages.0.content.0.source"),
        ([user({"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}})], "https:// or data:"),
        ([user(result(content=1))], "messages.0.content.0.content"),
        ([user(result(content=[{"type": "video"}]))], "messages.0.content.0.content.0.type"),
        ([user(result())], "no tool call 'x'"),
        ([user()], "blank"),
        ([user({"type": "text", "text": "x"}), assistant("y")], "messages.1: the last message is of"),
        ([assistant([{"type": "image"}]), user()], "'image'"),
        ([assistant([{"type": "tool_use", "id": "x", "name": "y", "input": []}]), user()], "0.input"),
        ([assistant([{"type": "tool_use", "id": "x", "name": "y"}]), user()], "no result"),
    ],
)
async def test_messages_that_are_refused(portico: RunningGateway, messages: list[Any], named: str) -> None:
    answer = await portico.client.post("/v1/messages", json={**body(), "messages": messages})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert named in answer.json()["error"]["message"]


async def test_no_tool_is_called_with_tool_choice_none(tmp_path: Path, write_scenario: WriteScenario) -> None:
    turn = [{"app_tool": {"id": "sky", "name": "weather"}}, {"text": "done"}]
    async with scripted(tmp_path, write_scenario, turn) as portico:
        answer = await ask(portico, tools=[WEATHER], tool_choice={"type": "none"})
        assert (answer["stop_reason"], answer["content"]) == ("end_turn", [{"type": "text", "text": "done"}])


async def test_a_thread_is_refused_so_that_the_whole_conversation_is_sent(portico: RunningGateway) -> None:
    answer = await portico.client.post("/v1/messages", json=body(thread={"type": "create"}))
    error = answer.json()["error"]
    assert (answer.status_code, error["details"]["error_code"]) == (400, "thread_unsupported_request")
    assert error["message"].startswith("thread: ")


@pytest.mark.parametrize(("step", "reason"), [("max_tokens", "max_tokens"), ("refusal", "refusal"), ("end_turn", "end_turn")])
async def test_stop_reasons(tmp_path: Path, write_scenario: WriteScenario, step: str, reason: str) -> None:
    async with scripted(tmp_path, write_scenario, [{"text": "half"}, {"stop": step}]) as portico:
        assert (await ask(portico))["stop_reason"] == reason
        assert (await stream(portico))[-2][1]["delta"]["stop_reason"] == reason


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
async def test_a_run_that_fails_at_once_is_an_error_response(
    tmp_path: Path, write_scenario: WriteScenario, streamed: bool
) -> None:
    turn = [{"stop": {"reason": "error", "message": "the model is down"}}]
    async with scripted(tmp_path, write_scenario, turn) as portico:
        answer = await portico.client.post("/v1/messages", json=body(stream=streamed))
        assert answer.status_code == 502
        assert answer.json() == {"type": "error", "error": {"type": "api_error", "message": "the model is down"}}
        assert answer.headers["x-should-retry"] == "false"
        assert answer.headers["x-portico-session"].startswith("sess_")


async def test_a_run_that_fails_later_ends_its_stream_with_an_error(tmp_path: Path, write_scenario: WriteScenario) -> None:
    turn = [{"text": "half"}, {"stop": {"reason": "error", "message": "the model is down"}}]
    async with scripted(tmp_path, write_scenario, turn) as portico:
        events = await stream(portico)
        assert [name for name, _ in events if name != "content_block_delta"] == ["message_start", "content_block_start", "error"]
        assert events[-1][1] == {"error": {"type": "api_error", "message": "the model is down"}}
        answer = await portico.client.post("/v1/messages", json=body())
        assert (answer.status_code, answer.json()["error"]["message"]) == (502, "the model is down")


def test_a_usage_limit_is_429_and_says_when_it_resets() -> None:
    answer = Answer((), "off")
    resets_at = time.time() + 3600
    error = Error(message="usage limit reached", resets_at=resets_at)
    end = SessionEnd(exit_code=1, stop_reason="error")
    answer.feed([Entry(1, error, error.encode()), Entry(2, end, end.encode())])
    failure = failure_of(answer)
    assert failure is not None
    assert (failure.status, failure.text, failure.headers["x-should-retry"]) == (429, "usage limit reached", "false")
    assert 3590 <= int(failure.headers["Retry-After"]) <= 3601


async def test_a_stream_whose_agent_is_silent_is_kept_open_with_pings(
    tmp_path: Path, write_scenario: WriteScenario, clock: ManualClock
) -> None:
    turn = [{"wait_for_file": "go"}, {"text": "done"}]
    async with scripted(tmp_path, write_scenario, turn, clock=clock, server={"keep_alive": 0.7}) as portico:
        asking = asyncio.create_task(portico.client.post("/v1/messages", json=body(stream=True)))
        # The response begins, with a ping; two others follow.
        for _ in range(3):
            await clock.expire(0.7)
        (tmp_path / "scenes" / "go").touch()
        lines = (await asking).text.split("\n")
    assert [line.removeprefix("event: ") for line in lines if line.startswith("event: ")] == [
        "message_start", "ping", "ping", "ping", "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert not any(line.startswith(":") for line in lines)


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
async def test_a_client_that_disconnects_ends_the_run(tmp_path: Path, write_scenario: WriteScenario, streamed: bool) -> None:
    turns = ({"when": "slow", "steps": [{"text": "half"}, {"hang": True}]}, [{"remember": True}])
    async with scripted(tmp_path, write_scenario, *turns) as portico:
        if streamed:
            async with portico.client.stream("POST", "/v1/messages", json=body("slow", stream=True)) as answer:
                async for line in answer.aiter_lines():
                    if "half" in line:
                        break
                session = await portico.gateway.sessions.get(ADMINISTRATOR, answer.headers["x-portico-session"])
        else:
            async with httpx.AsyncClient(base_url=portico.url, headers={"x-api-key": KEY}) as client:
                asking = asyncio.create_task(client.post("/v1/messages", json=body("slow")))
                held = await wait_until(lambda: [one for one in portico.gateway.sessions.held if one.state == "running"])
                session = held[0]
                asking.cancel()
        await wait_until(lambda: session.state == "idle")
        if streamed:
            # The client has that much of the answer, and goes on with it.
            second = await ask(portico, "slow", assistant("half"), "go on")
            assert (text_of(second), second["session"]) == ('["slow"]', session.id)


async def test_equal_conversations_of_two_users_are_told_apart(tmp_path: Path, write_scenario: WriteScenario) -> None:
    async with scripted(tmp_path, write_scenario, [{"remember": True}]) as portico:
        users = [{"user_id": f"user_{name}"} for name in ("ann", "bob")]
        first, other = [await ask(portico, "one", metadata=user) for user in users]
        second = await ask(portico, "one", assistant(first["content"]), "two", metadata=users[0])
        assert second["session"] == first["session"] != other["session"]


async def test_a_level_of_effort_that_the_agent_lists_is_its_option(tmp_path: Path) -> None:
    config = gateway_config(tmp_path, agents={"claude": {"driver": "claude", "program": "/nonexistent/claude"}})
    async with run_gateway(config) as portico:
        portico.gateway.agents.get("claude").apply_probe(Probe(efforts=("low", "high")))
        assert effort_options(portico.gateway, find_model(portico.gateway, "claude"), "high") == {"effort": "high"}
        assert effort_options(portico.gateway, find_model(portico.gateway, "claude"), "max") == {}
        assert effort_options(portico.gateway, find_model(portico.gateway, "echo"), "high") == {}


async def test_the_count_of_tokens_is_an_estimate(portico: RunningGateway) -> None:
    async def count(*messages: Any, **fields: Any) -> int:
        request = body(*messages, **fields)
        del request["max_tokens"]
        answer = await portico.client.post("/v1/messages/count_tokens", json=request)
        assert answer.headers["x-portico-estimated"] == "input_tokens"
        return int(answer.json()["input_tokens"])

    assert await count("x" * 400) == 104
    assert await count("x" * 400, system="y" * 40) == 118
    assert await count("ü" * 200) == 104
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    assert await count({"role": "user", "content": [image]}) == 1604
    assert await count("x", tools=[WEATHER]) > await count("x")
    call = {"type": "tool_use", "id": "a", "name": "weather", "input": {"in": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "z" * 400}
    with_call = await count("x", assistant([call]), {"role": "user", "content": [result]})
    assert with_call > 112
    unknown = await portico.client.post("/v1/messages/count_tokens", json=body(model="nobody"))
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")


async def test_the_key_and_errors_of_anthropics_clients(portico: RunningGateway) -> None:
    async with httpx.AsyncClient(base_url=portico.url) as client:
        answer = await client.post("/v1/messages", json=body(model="echo"), headers={"x-api-key": KEY})
        assert answer.status_code == 200
        metrics = (await portico.client.get("/metrics")).text
        assert 'route="/v1/messages",status="200"' in metrics
        for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": KEY, "authorization": "Bearer wrong"}):
            refusal = await client.post("/v1/messages", json=body(model="echo"), headers=headers)
            assert (refusal.status_code, refusal.json()["error"]["type"]) == (401, "authentication_error")
            assert refusal.headers["request-id"].startswith("req_")
    unknown = await portico.client.post("/v1/messages", json=body(model="nobody"))
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    missing = await portico.client.post("/v1/messages/batches", json={})
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")


async def test_models_of_anthropics_clients(portico: RunningGateway) -> None:
    version = {"anthropic-version": "2023-06-01"}
    page = (await portico.client.get("/v1/models", headers=version)).json()
    assert [model["id"] for model in page["data"]] == ["script", "echo"]
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("script", "echo", False)
    echo = {"type": "model", "id": "echo", "display_name": "Echo", "created_at": "2025-01-01T00:00:00Z", "lifecycle": "active"}
    assert page["data"][1] == (await portico.client.get("/v1/models/echo", headers=version)).json() == echo
    missing = await portico.client.get("/v1/models/nobody", headers=version)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
