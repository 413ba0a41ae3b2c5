"""The same turn in the three stream modes `delta`, `message` and `none`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.protocols.aap import turn_responses
from tests.support.aap_client import ROOT, AapClient
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import joined_text, session_body, user_message
from tests.support.sse import Frame, parse_frames

WriteScenario = Callable[..., str]
STEPS = [
    {"thinking": {"text": "First a thought.", "chunk": 3}},
    {"text": {"text": "A first message: äöü 🙂\n", "chunk": 4}},
    {"message_end": True},
    {"thinking": {"text": "A second thought.", "chunk": 5}},
    {"text": {"text": "A second message.", "chunk": 2}},
    {"usage": {"input_tokens": 1, "reasoning_tokens": 2, "cost_usd": 0.1}},
    {"usage": {"output_tokens": 3, "cache_read": 4, "cache_write": 5, "cost_usd": 0.2}},
]
STOP = {
    "stopReason": "end_turn",
    "x-portico": {
        "usage": {
            "inputTokens": 1,
            "outputTokens": 3,
            "cacheReadTokens": 4,
            "cacheWriteTokens": 5,
            "reasoningTokens": 2,
            "costUsd": 0.3,
        }
    },
}
WHOLE = [
    ("thinking", {"thinking": "First a thought."}),
    ("text", {"text": "A first message: äöü 🙂\n"}),
    ("thinking", {"thinking": "A second thought."}),
    ("text", {"text": "A second message."}),
]
MESSAGES = [
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "First a thought."},
            {"type": "text", "text": "A first message: äöü 🙂\n"},
        ],
    },
    {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "A second thought."}, {"type": "text", "text": "A second message."}],
    },
]


async def turn(aap: AapClient, scenario: str, mode: str) -> tuple[str, list[Frame]]:
    """Creates a session; returns its id and the events of its first turn after `turn_start`."""
    session, events = await aap.create_streamed(options={"scenario": scenario}, stream=mode)
    assert events[0] == ("turn_start", {})
    assert [name for name, _ in events].count("turn_stop") == 1
    assert events[-1][0] == "turn_stop"
    return session, events[1:]


async def test_a_turn_in_each_mode(aap: AapClient, write_scenario: WriteScenario) -> None:
    scenario = write_scenario(STEPS)
    session, events = await turn(aap, scenario, "delta")
    assert [name for name, _ in events[:6]] == ["thinking_delta"] * 6
    assert {name for name, _ in events} == {"thinking_delta", "text_delta", "turn_stop"}
    assert joined_text(events, "text_delta") == "A first message: äöü 🙂\nA second message."
    assert joined_text(events, "thinking_delta") == "First a thought.A second thought."
    assert events[-1] == ("turn_stop", STOP)
    assert await aap.get_history(session) == [user_message(), *MESSAGES]
    session, events = await turn(aap, scenario, "message")
    assert events == [*WHOLE, ("turn_stop", STOP)]
    assert await aap.get_history(session) == [user_message(), *MESSAGES]
    body = await aap.create_session(options={"scenario": scenario}, stream="none")
    session = body.pop("sessionId")
    assert body == {**STOP, "messages": MESSAGES}
    assert await aap.get_history(session) == [user_message(), *MESSAGES]
    # `none` is the default. A later turn begins with `turn_start` as the first one does.
    answer = await aap.put(session_body("echo", "hi"))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    session = answer.extensions["session"]
    again = await aap.send_turn(session, "ho")
    assert again == {"stopReason": "end_turn", "messages": [{"role": "assistant", "content": "ho"}]}
    for mode, text in (("delta", ("text_delta", {"delta": "two"})), ("message", ("text", {"text": "two"}))):
        events = await aap.stream_turn(session, user_message("two"), stream=mode)
        assert events == [("turn_start", {}), text, ("turn_stop", {"stopReason": "end_turn"})], mode


async def test_session_continues_over_turns_in_every_mode(aap: AapClient, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"text": "{turn}:"}, {"remember": True}])
    session = (await aap.create_session("script", "a", options={"scenario": name}))["sessionId"]
    for number, mode in enumerate(("delta", "message", "none"), 2):
        body = {"messages": [user_message("a" * number)], "stream": mode}
        assert (await aap.post(session, body)).status_code == 200
    answer = await aap.send_turn(session, "last")
    assert answer["messages"] == [{"role": "assistant", "content": '5:["a", "aa", "aaa", "aaaa"]'}]
    stored = await aap.get_history(session)
    assert [message["role"] for message in stored] == ["user", "assistant"] * 5


async def test_stop_reason_is_sent_in_every_mode(aap: AapClient, write_scenario: WriteScenario) -> None:
    for steps, reason in (
        ([{"text": "x"}, {"stop": "max_tokens"}], "max_tokens"),
        ([{"text": "x"}, {"stop": "refusal"}], "refusal"),
        ([{"text": "x"}, {"stop": {"reason": "error", "message": "the model is away"}}], "error"),
        ([{"text": "x"}, {"exit": 3}], "error"),
    ):
        name = write_scenario(steps)
        for mode in ("delta", "message"):
            session, events = await turn(aap, name, mode)
            assert events[-1][1]["stopReason"] == reason, (steps, reason)
            assert ("x-portico" in events[-1][1]) == (reason == "error"), (steps, reason)
        body = await aap.create_session(options={"scenario": name})
        assert body["stopReason"] == reason, (steps, reason)
        assert body["messages"] == [{"role": "assistant", "content": "x"}], (steps, reason)
        assert ("x-portico" in body) == (reason == "error"), (steps, reason)
        if name and steps[-1] == {"stop": {"reason": "error", "message": "the model is away"}}:
            assert body["x-portico"] == {"error": "the model is away"}, (steps, reason)
        found = await aap.wait_until_idle(session)
        assert found["stopReason"] == reason, (steps, reason)
        assert ("error" in found) == (reason == "error"), (steps, reason)
        assert found["history"]["full"][1:] == [{"role": "assistant", "content": "x"}], (steps, reason)


async def test_discarded_message_is_not_sent_or_stored(aap: AapClient, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"text": "Half a mess"}, {"message_end": {"discarded": True}}, {"text": "A whole message."}])
    session, events = await turn(aap, name, "message")
    assert events[:-1] == [("text", {"text": "A whole message."})]
    assert (await aap.get_history(session))[1:] == [{"role": "assistant", "content": "A whole message."}]


async def test_frames_have_the_exact_bytes_of_the_protocol(portico: RunningGateway) -> None:
    answer = await portico.client.put("/session", json=session_body("echo", 'reply "hi"\n\n', stream="delta"))
    first, rest = answer.content.split(b"\n\n", 1)
    assert first.startswith(b'event: session_start\ndata: {"sessionId":"sess_')
    assert rest == (
        b"event: turn_start\ndata: {}\nid: 1\n\n"
        b'event: text_delta\ndata: {"delta":"reply \\"hi\\"\\n\\n"}\nid: 3\n\n'
        b'event: turn_stop\ndata: {"stopReason":"end_turn"}\nid: 4\n\n'
    )
    # Stream headers disable buffering.
    for path, body in (("/session", session_body("echo", stream="delta")), ("/v1/execute", {"driver": "echo", "task": "x"})):
        answer = await portico.client.request("PUT" if path == "/session" else "POST", path, json=body)
        assert answer.headers["content-type"].split(";")[0] == "text/event-stream"
        assert "no-cache" in answer.headers["cache-control"]
        assert answer.headers["x-accel-buffering"] == "no"


async def test_idle_stream_sends_keep_alive_comments(tmp_path: Path, write_scenario: WriteScenario, clock: ManualClock) -> None:
    name = write_scenario([{"text": "a"}, {"wait_for_file": "go"}, {"text": "b"}])
    body, text = session_body(options={"scenario": name}, stream="delta"), ""
    async with (
        run_gateway(gateway_config(tmp_path, server={"keep_alive": 0.7}), clock) as portico,
        portico.client.stream("PUT", "/session", json=body) as answer,
    ):
        async for chunk in answer.aiter_text():
            text += chunk
            if text.partition("text_delta")[2].count(": keep-alive") >= 3:
                (tmp_path / "scenes" / "go").touch()
            elif "text_delta" in text:
                await clock.expire(0.7)
    blocks = text.split("\n\n")
    deltas = [n for n, block in enumerate(blocks) if block.startswith("event: text_delta")]
    comments = blocks[deltas[0] + 1 : deltas[1]]
    assert len(comments) >= 3
    assert all(block.startswith(": ") for block in comments)
    assert [name for name, _ in parse_frames(text)][2:] == ["text_delta", "text_delta", "turn_stop"]


async def test_events_are_sent_before_the_turn_ends(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    body = session_body(options={"scenario": write_scenario([{"text": "a"}, {"hang": True}])}, stream="delta")
    async with portico.client.stream("PUT", "/session", json=body) as answer:
        seen = ""
        async for chunk in answer.aiter_text():
            seen += chunk
            if "text_delta" in seen:
                break
    assert seen.startswith("event: session_start")


@pytest.mark.parametrize("error", [False, True])
async def test_long_json_answer_is_sent_in_chunks(
    portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch, error: bool
) -> None:
    steps: list[dict[str, Any]] = [
        {"text": 'a "b" \u2028'},
        {"tool_call": {"id": "c", "name": "lookup", "input": {"query": "q"}, "result": "found"}},
        {"text": "end"},
        *([{"stop": {"reason": "error", "message": "broken"}}] if error else []),
    ]
    options = {"scenario": write_scenario(steps)}
    grants = [{"name": "lookup", "trust": True}]
    short = await portico.client.put("/session", json=session_body(options=options, grants=grants))
    monkeypatch.setattr(turn_responses, "MAX_KEPT", 10)
    long = await portico.client.put("/session", json=session_body(options=options, grants=grants))
    assert "content-length" in short.headers and "content-length" not in long.headers
    assert (long.status_code, long.headers["content-type"]) == (201, "application/json")
    assert list(long.json()) == list(short.json())
    assert {**long.json(), "sessionId": ""} == {**short.json(), "sessionId": ""}
    assert len(long.json()["messages"]) == 3


AWAY = "the model is away"
REASON = {"role": "assistant", "content": AWAY, "x-portico": {"error": True}}
THOUGHT = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}


def failing(write_scenario: WriteScenario) -> str:
    """Write a scenario that fails at the prompt `fail`, after a thought, and answers other prompts."""
    failure = {"stop": {"reason": "error", "message": AWAY}}
    return write_scenario({"when": "fail", "steps": [{"thinking": "hm"}, failure]}, [{"text": "{turn}:"}, {"remember": True}])


async def test_reason_of_a_failed_turn_without_text_is_its_text(aap: AapClient, write_scenario: WriteScenario) -> None:
    answer = await aap.create_session("script", "fail", options={"scenario": failing(write_scenario)})
    session, stop = answer.pop("sessionId"), {"stopReason": "error", "x-portico": {"error": AWAY}}
    assert answer == {**stop, "messages": [THOUGHT, REASON]}
    assert await aap.stream_turn(session, user_message("fail"), stream="delta") == [
        ("turn_start", {}), ("thinking_delta", {"delta": "hm"}), ("text_delta", {"delta": AWAY}), ("turn_stop", stop),
    ]  # fmt: skip
    assert await aap.stream_turn(session, user_message("fail"), stream="message") == [
        ("turn_start", {}), ("thinking", {"thinking": "hm"}), ("text", {"text": AWAY}), ("turn_stop", stop),
    ]  # fmt: skip
    found = await aap.get_session(session)
    assert (found["stopReason"], found["error"]) == ("error", AWAY)
    assert found["history"]["full"] == [user_message("fail"), THOUGHT, REASON] * 3
    after = await aap.send_turn(session, "on")
    assert after["messages"] == [{"role": "assistant", "content": '4:["fail", "fail", "fail"]'}]
    found = await aap.get_session(session)
    assert found["history"]["full"][-3:] == [REASON, user_message("on"), *after["messages"]]
    assert "error" not in found


async def test_reason_of_a_failed_turn_is_no_text_where_that_is_configured(tmp_path: Path, write_scenario: WriteScenario) -> None:
    name = failing(write_scenario)
    async with run_gateway(gateway_config(tmp_path, server={"errors_as_text": False})) as portico:
        aap = AapClient(portico.client, ROOT)
        answer = await aap.create_session("script", "fail", options={"scenario": name})
        assert (answer["messages"], answer["x-portico"]) == ([THOUGHT], {"error": AWAY})
        events = await aap.stream_turn(answer["sessionId"], user_message("fail"), stream="message")
        assert [event for event, _ in events] == ["turn_start", "thinking", "turn_stop"]
        found = await aap.get_session(answer["sessionId"])
    assert (found["error"], found["history"]["full"]) == (AWAY, [user_message("fail"), THOUGHT] * 2)


async def test_failed_turn_has_frames_with_increasing_ids(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    body = session_body("script", "fail", options={"scenario": failing(write_scenario)}, stream="delta")
    answer = await portico.client.put("/session", json=body)
    assert [line for line in answer.text.split("\n") if line.startswith("id:")][-2:] == ["id: 5.1", "id: 5"]


async def test_reason_of_a_failed_turn_is_not_given_to_an_agent(
    portico: RunningGateway, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by the gateway's own history, nor by a client that creates a session with it."""
    entry, specs = portico.gateway.agents.get("script"), list[Any]()
    original = entry.driver.open

    async def record_spec(spec: Any, *rest: Any) -> Any:
        specs.append(spec)
        return await original(spec, *rest)

    monkeypatch.setattr(entry.driver, "open", record_spec)
    aap, options = AapClient(portico.client, ROOT), {"scenario": write_scenario([{"exit": 3}], [{"text": "{turn}"}])}
    answer = await aap.create_session("script", "fail", options=options)
    reason = answer["x-portico"]["error"]
    assert [message["content"] for message in answer["messages"]] == [reason]
    assert (await aap.send_turn(answer["sessionId"], "on"))["stopReason"] == "end_turn"
    history = await aap.get_history(answer["sessionId"])
    assert [message["content"] for message in history[:3]] == ["fail", reason, "on"]
    copy = await aap.create_session("script", *history, "and on", options=options)
    assert (await aap.get_history(copy["sessionId"]))[: len(history)] == history
    seeds = [[message.content for message in spec.seed.history] for spec in specs]
    assert seeds == [[], ["fail"], ["fail", "on", history[3]["content"]]]
