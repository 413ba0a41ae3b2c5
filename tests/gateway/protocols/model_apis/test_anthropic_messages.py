"""Anthropic's Messages API: answers, streams, tools, images, what is ignored and what is refused, failures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from drivers.contract.events import Error, SessionEnd
from gateway.events.event_log import Entry
from gateway.protocols.model_apis.answer import Answer
from gateway.protocols.model_apis.anthropic_messages_response import SIGNATURE
from gateway.protocols.model_apis.running_answer import failure_of
from tests.support.daemon import RunningGateway
from tests.support.requests import get_history
from tests.support.sse import named_data, parse

Play = Callable[..., None]
WEATHER = {"name": "weather", "description": "The weather.", "input_schema": {"type": "object"}}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
Event = tuple[str, dict[str, Any]]


def body(*messages: Any, model: str = "script", **fields: Any) -> dict[str, Any]:
    """A request. Strings are messages of the user."""
    given = [{"role": "user", "content": message} if isinstance(message, str) else message for message in messages or ("hi",)]
    return {"model": model, "max_tokens": 1024, "messages": given, **fields}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*blocks]}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def result(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "sky"} | fields


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


async def test_the_events_of_a_stream(portico: RunningGateway, play: Play) -> None:
    play(ASKS)
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


async def test_results_and_what_stands_beside_them(portico: RunningGateway, play: Play) -> None:
    play({"when": "Weather", "steps": ASKS}, [{"text": "{prompt}"}])
    first = await ask(portico, "Weather?", tools=[WEATHER])
    asked = ["Weather?", assistant(first["content"])]
    sun = {"type": "text", "text": "sun", "cache_control": {"type": "ephemeral"}}
    events = await stream(portico, *asked, user(result(content=[sun], is_error=True)), tools=[WEATHER])
    assert "".join(data["delta"]["text"] for name, data in events if name == "content_block_delta") == "It is Error: sun."
    assert events[-2] == ("message_delta", {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": USAGE})
    # A message beside results is put after them.
    second = await ask(portico, *asked, user({"type": "text", "text": "and hurry"}, result()), tools=[WEATHER])
    assert text_of(second) == "and hurry"
    roles = [message["role"] for message in await get_history(portico.client, second["session"])]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]
    # A system message behind results is part of the last one.
    reminder = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    third = await ask(portico, *asked, user(result(content="sun")), reminder, tools=[WEATHER])
    assert (text_of(third), third["usage"]) == ("It is sun\n\nBe brief..", USAGE)
    whole = [*asked, user(result(content="sun")), reminder, assistant(third["content"]), "Thanks"]
    assert (await ask(portico, *whole, tools=[WEATHER]))["session"] == third["session"]
    # An image, by its URL or as data.
    sources = [{"type": "base64", "media_type": "image/png", "data": PIXEL}, {"type": "url", "url": "https://example.org/a.png"}]
    images = [{"type": "image", "source": source} for source in sources]
    fourth = await ask(portico, *asked, user(result(content=images)), tools=[WEATHER])
    content = (await get_history(portico.client, fourth["session"]))[2]["content"]
    assert [block["url"] for block in content] == [f"data:image/png;base64,{PIXEL}", "https://example.org/a.png"]


async def test_thinking_is_sent_to_clients_that_want_it(portico: RunningGateway, play: Play) -> None:
    play([{"thinking": "Hm."}, {"text": "So."}])
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
    # Thoughts between texts.
    for thinking, expected in ((None, ["text"]), ({"type": "adaptive"}, ["thinking", "text", "thinking", "text"])):
        turn = [{"thinking": "Hm."}, {"text": "one "}, {"thinking": "Well."}, {"text": "two"}]
        play(turn)
        whole = await ask(portico, thinking=thinking)
        events = await stream(portico, thinking=thinking)
        opened = [data["content_block"]["type"] for name, data in events if name == "content_block_start"]
        assert (opened, [block["type"] for block in whole["content"]]) == (expected, expected), (thinking, expected)
        assert text_of(whole) == "one two", (thinking, expected)


async def test_system_prompts_and_messages_of_one_role(portico: RunningGateway, play: Play) -> None:
    # The system prompt.
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.329; cch=0a1b2;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be kind."},
    ]
    play([{"text": "{system}"}], [{"text": "{prompt}"}])
    first = await ask(portico, "one", system=system)
    assert text_of(first) == "Be brief.\n\nBe kind."
    # That header is not part of the conversation, and differs in each request.
    system[0]["text"] = system[0]["text"].replace("0a1b2", "ffff0")
    reply = assistant(first["content"])
    second = await ask(portico, "one", reply, {"role": "system", "content": "Now in French."}, "two", system=system)
    assert (text_of(second), second["session"]) == ("Now in French.\n\ntwo", first["session"])
    # Only the billing line of a system prompt is left out.
    play([{"text": "{system}"}])
    for system, expected in (
        ("x-anthropic-billing-header: cch=0a1b2;\nBe brief.", "Be brief."),
        ("Never send\nx-anthropic-billing-header: a", "Never send\nx-anthropic-billing-header: a"),
    ):
        assert text_of(await ask(portico, "one", system=system)) == expected
    # Messages of one role in a row.
    play([{"text": "{prompt}"}])
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


REFUSED_FIELDS: list[Any] = [
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
]


async def test_fields_and_messages_that_are_refused(portico: RunningGateway) -> None:
    answer = await portico.client.post("/v1/messages", json=body(thread={"type": "create"}))
    assert answer.json()["error"]["message"].startswith("thread: ")
    assert answer.json()["error"]["details"]["error_code"] == "thread_unsupported_request", "so the whole conversation is sent"
    for fields, named in REFUSED_FIELDS:
        status, kind, text = await refused(portico, **fields)
        assert (status, kind) == (400, "invalid_request_error"), (fields, named)
        assert named in text, (fields, named)
        assert portico.gateway.sessions.held == [], (fields, named)
    # Messages that are refused.
    for messages, named in REFUSED_MESSAGES:
        answer = await portico.client.post("/v1/messages", json={**body(), "messages": messages})
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error"), (messages, named)
        assert named in answer.json()["error"]["message"], (messages, named)


REFUSED_MESSAGES: list[Any] = [
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
    ([user(result())], "no tool call 'sky'"),
    ([user()], "blank"),
    ([user({"type": "text", "text": "x"}), assistant("y")], "messages.1: the last message is of"),
    ([assistant([{"type": "image"}]), user()], "'image'"),
    ([assistant([{"type": "tool_use", "id": "x", "name": "y", "input": []}]), user()], "0.input"),
    ([assistant([{"type": "tool_use", "id": "x", "name": "y"}]), user()], "no result"),
]


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


async def test_equal_conversations_of_two_users_are_told_apart(portico: RunningGateway, play: Play) -> None:
    play([{"remember": True}])
    users = [{"user_id": f"user_{name}"} for name in ("ann", "bob")]
    first, other = [await ask(portico, "one", metadata=user) for user in users]
    second = await ask(portico, "one", assistant(first["content"]), "two", metadata=users[0])
    assert second["session"] == first["session"] != other["session"]


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


async def test_headers_and_errors_of_anthropics_clients(portico: RunningGateway) -> None:
    answer = await portico.client.post("/v1/messages", json=body(model="echo"))
    assert answer.headers["request-id"].startswith("req_")
    assert 'route="/v1/messages",status="200"' in (await portico.client.get("/metrics")).text
    for path, request in (("/v1/messages", body(model="nobody")), ("/v1/messages/batches", {})):
        missing = await portico.client.post(path, json=request)
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error"), path
        assert missing.headers["request-id"].startswith("req_"), path
