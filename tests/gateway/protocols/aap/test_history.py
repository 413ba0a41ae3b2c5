"""The history of a session: messages are stored exactly as they were sent or produced, and passed to the agent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.aap_client import AapClient
from tests.support.daemon import RunningGateway
from tests.support.requests import expect_error, session_body, user_message

WriteScenario = Callable[..., str]
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SEED: list[dict[str, Any]] = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "first", "name": "ada", "nested": {"deep": [1, 2.5, None, True, "x"]}},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "text", "text": "", "annotations": []},
            {"type": "tool_use", "toolCallId": "call_1", "name": "lookup", "input": {"query": "x", "n": 12345678901234567890}},
        ],
    },
    {"role": "tool", "toolCallId": "call_1", "content": [{"type": "text", "text": "3 hits"}], "isError": False},
    {"role": "assistant", "content": "answer"},
    {"role": "system", "content": "And politely."},
    {"role": "user", "content": [{"type": "text", "text": "second"}, {"type": "image", "url": PIXEL, "detail": "low"}]},
]


@pytest.mark.usefixtures("each_store")
async def test_messages_are_returned_exactly_as_sent(aap: AapClient) -> None:
    session = (await aap.create_session("script", *SEED, options={"pace": "fast"}))["sessionId"]
    stored = await aap.get_history(session)
    assert stored[:-1] == SEED
    assert stored[-1]["role"] == "assistant"
    later = [
        user_message("text"),
        user_message([{"type": "text", "text": "text"}]),
        user_message([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
    ]
    for message in later:
        await aap.send_turn(session, message)
    sent = [message for message in await aap.get_history(session) if message["role"] == "user"]
    assert sent[-3:] == later


async def test_a_seed_reaches_the_agent(aap: AapClient, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"text": "{system}|{images}|"}, {"remember": True}])
    answer = await aap.create_session("script", *SEED, options={"scenario": name})
    assert answer["messages"] == [{"role": "assistant", "content": 'Answer briefly.\n\nAnd politely.|1|["first"]'}]


async def test_the_whole_seed_reaches_the_agent(portico: RunningGateway, aap: AapClient, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = portico.gateway.agents.get("script")
    specs = []
    original = entry.driver.open

    async def record_spec(spec: Any, *rest: Any) -> Any:
        specs.append(spec)
        return await original(spec, *rest)

    monkeypatch.setattr(entry.driver, "open", record_spec)
    await aap.create_session("script", *SEED, options={"pace": "fast"})
    (spec,) = specs
    seeded = [json.loads(message.model_dump_json()) for message in spec.seed.history]
    assert seeded == [message for message in SEED[:-1] if message["role"] != "system"]


async def test_full_history_is_the_default(aap: AapClient, write_scenario: WriteScenario) -> None:
    session = (await aap.create_session("echo"))["sessionId"]
    plain = await aap.get_session(session)
    asked = (await aap.request_history(session, "full")).json()
    assert asked == {"history": plain["history"]}
    assert plain["history"] == {"full": [user_message(), {"role": "assistant", "content": "hello"}]}
    # Unknown session is not found.
    for session in ("sess_unknown", "x%00y", "x" * 2000):
        assert "there is no session" in await expect_error(aap.get(session), 404)
        assert "there is no session" in await expect_error(aap.request_history(session, "full"), 404)
        assert "there is no session" in await expect_error(aap.post(session, {"messages": [user_message()]}), 404)
        assert "there is no session" in await expect_error(aap.delete(session), 404)
    # Turn without output keeps the user message.
    name = write_scenario([{"usage": {}}])
    answer = await aap.create_session(options={"scenario": name})
    assert (answer["stopReason"], answer["messages"]) == ("end_turn", [])
    assert await aap.get_history(answer["sessionId"]) == [user_message()]


async def test_images(aap: AapClient, write_scenario: WriteScenario) -> None:
    # Images are accepted by an agent that supports them.
    for kind in ("https://example.org/cat.png", PIXEL):
        name = write_scenario([{"text": "{images} in: {prompt}"}])
        picture = user_message([{"type": "image", "url": kind}, {"type": "text", "text": "look"}])
        answer = await aap.create_session("script", picture, options={"scenario": name})
        assert answer["messages"][0]["content"] == "1 in: look", kind
        assert (await aap.get_history(answer["sessionId"]))[0] == picture, kind
    # Images are refused for an agent without support.
    for url in ("https://example.org/cat.png", PIXEL):
        text = await expect_error(aap.put(session_body("echo", user_message([{"type": "image", "url": url}]))), 400)
        assert "image" in text and "'echo'" in text
    for url in ("http://example.org/cat.png", "file:///etc/passwd", "cat.png", ""):
        text = await expect_error(aap.put(session_body("script", user_message([{"type": "image", "url": url}]))), 400)
        assert "https://" in text
    session = (await aap.create_session("echo"))["sessionId"]
    body = {"messages": [user_message([{"type": "text", "text": "see"}, {"type": "image", "url": PIXEL}])]}
    await expect_error(aap.post(session, body), 400)
    assert len(await aap.get_history(session)) == 2
