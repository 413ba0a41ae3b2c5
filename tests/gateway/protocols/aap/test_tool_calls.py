"""Pending calls: results, permissions, invalid answers, and cancellation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.aap_client import AapClient
from tests.support.daemon import SCENARIOS, RunningGateway
from tests.support.requests import expect_error, user_message

WriteScenario = Callable[..., str]
APPLICATION_TOOLS = [
    {"name": "get_weather", "description": "The weather.", "inputSchema": {"type": "object"}},
    {"name": "get_time", "description": "The time.", "inputSchema": {"type": "object"}},
]
GRANTS = [{"name": "lookup", "trust": True}, {"name": "write_note"}]
WEATHER = {"role": "tool", "toolCallId": "weather", "content": "rain"}
CLOCK = {"role": "tool", "toolCallId": "clock", "content": [{"type": "text", "text": "noon"}]}
YES = {"role": "tool_permission", "toolCallId": "note", "granted": True}
CALLS = [
    {"type": "text", "text": "I ask around."},
    {"type": "tool_use", "toolCallId": "weather", "name": "get_weather", "input": {"location": "Tokyo"}},
    {"type": "tool_use", "toolCallId": "clock", "name": "get_time", "input": {"zone": "Asia/Tokyo"}},
    {"type": "tool_use", "toolCallId": "call_1_1", "name": "lookup", "input": {"query": "hello"}},
    {
        "type": "tool_use",
        "toolCallId": "note",
        "name": "write_note",
        "input": {"path": "notes/tokyo.md", "text": "Tokyo"},
    },
]
LOOKED_UP = {"role": "tool", "toolCallId": "call_1_1", "content": "3 hits"}


@pytest.fixture
async def pending(aap: AapClient, tmp_path: Path) -> dict[str, Any]:
    """The first turn of a session of the scenario `tools`, which stops with two pending results and one pending permission."""
    (tmp_path / "scenes" / "tools.json").write_bytes((SCENARIOS / "tools.json").read_bytes())
    return await aap.create_session(options={"scenario": "tools.json"}, tools=APPLICATION_TOOLS, grants=GRANTS)


async def test_turn_continues_after_results_and_permission(aap: AapClient, pending: dict[str, Any], tmp_path: Path) -> None:
    # Turn stops for calls that need the client.
    assert pending["stopReason"] == "tool_use"
    assert pending["messages"] == [{"role": "assistant", "content": CALLS}, LOOKED_UP]
    found = await aap.get_session(pending["sessionId"])
    assert (found["state"], found["stopReason"]) == ("waiting", "tool_use")
    assert found["history"]["full"] == [user_message(), *pending["messages"]]
    # Turn continues after results and permission.
    session = pending["sessionId"]
    file = tmp_path / "scenes" / "notes" / "tokyo.md"
    assert not file.exists()
    answer = await aap.send_turn(session, CLOCK, YES, WEATHER)
    end = {"role": "assistant", "content": 'The weather: rain. The time: noon. The note: {"written": 5}.'}
    result = {"role": "tool", "toolCallId": "note", "content": '{"written":5}'}
    assert answer == {"stopReason": "end_turn", "messages": [result, end]}
    assert file.read_text() == "Tokyo"
    assert await aap.get_history(session) == [user_message(), *pending["messages"], CLOCK, WEATHER, result, end]
    assert (await aap.get_session(session))["state"] == "idle"


async def test_stream_contains_calls_and_results(aap: AapClient, tmp_path: Path) -> None:
    for mode in ("delta", "message"):
        (tmp_path / "scenes" / "tools.json").write_bytes((SCENARIOS / "tools.json").read_bytes())
        session, events = await aap.create_streamed(
            options={"scenario": "tools.json"}, tools=APPLICATION_TOOLS, grants=GRANTS, stream=mode
        )
        text = ("text_delta", {"delta": "I ask around."}) if mode == "delta" else ("text", {"text": "I ask around."})
        calls = [("tool_call", {key: value for key, value in call.items() if key != "type"}) for call in CALLS[1:]]
        looked_up = ("tool_result", {"toolCallId": "call_1_1", "content": "3 hits"})
        assert events == [("turn_start", {}), text, *calls, looked_up, ("turn_stop", {"stopReason": "tool_use"})], mode
        events = await aap.stream_turn(session, WEATHER, CLOCK, YES, stream=mode)
        assert events[:2] == [("turn_start", {}), ("tool_result", {"toolCallId": "note", "content": '{"written":5}'})], mode
        assert [name for name, _ in events].count("tool_result") == 1, "a result that the client sent is not echoed"
        assert events[-1] == ("turn_stop", {"stopReason": "end_turn"}), mode


WRONG_ANSWERS: list[tuple[list[dict[str, Any]], list[str]]] = [
    ([WEATHER], ["'clock'", "'note'", "still pending"]),
    ([WEATHER, CLOCK], ["'note'", "still pending"]),
    ([WEATHER, CLOCK, YES, WEATHER | {"toolCallId": "moon"}], ["'moon'", "'clock', 'note', 'weather'"]),
    ([WEATHER, CLOCK, YES, YES], ["twice", "'note'"]),
    ([WEATHER, CLOCK, YES, WEATHER], ["twice", "'weather'"]),
    ([YES | {"toolCallId": "call_1_1"}], ["'call_1_1'"]),
    ([WEATHER, CLOCK, YES, user_message()], ["stands alone"]),
]


async def test_invalid_answers_are_refused_and_the_calls_stay_pending(aap: AapClient, pending: dict[str, Any]) -> None:
    session = pending["sessionId"]
    before = await aap.get_session(session)
    for messages, named in WRONG_ANSWERS:
        text = await expect_error(aap.post(session, {"messages": messages}), 400)
        assert all(word in text for word in named), text
        assert await aap.get_session(session) == before
    assert (await aap.send_turn(session, WEATHER, CLOCK, YES))["stopReason"] == "end_turn"
    text = await expect_error(aap.post(session, {"messages": [WEATHER]}), 400)
    assert "'weather'" in text


async def test_a_user_message_cancels_the_pending_calls(aap: AapClient, pending: dict[str, Any], tmp_path: Path) -> None:
    session = pending["sessionId"]
    write_scenario = {"turns": [{"steps": [{"text": "{turn}"}]}]}
    (tmp_path / "scenes" / "tools.json").write_text(json.dumps(write_scenario))
    answer = await aap.send_turn(session, "never mind", agent={"options": {"pace": "fast"}})
    assert answer == {"stopReason": "end_turn", "messages": [{"role": "assistant", "content": "2"}]}
    cancelled = [{"role": "tool", "toolCallId": call, "content": "Tool call cancelled"} for call in ("weather", "clock", "note")]
    stored = await aap.get_history(session)
    assert stored == [user_message(), *pending["messages"], *cancelled, user_message("never mind"), *answer["messages"]]
    assert not (tmp_path / "scenes" / "notes").exists()


async def test_settings_and_the_process_are_kept(portico: RunningGateway, aap: AapClient, write_scenario: WriteScenario) -> None:
    # Agent process is kept after calls were cancelled.
    ask = {"when": "ask", "steps": [{"app_tool": {"id": "w", "name": "get_weather"}}, {"text": "not sent"}]}
    name = write_scenario(ask, [{"text": "{turn}"}, {"remember": True}])
    session = (await aap.create_session("script", "ask", options={"scenario": name}, tools=APPLICATION_TOOLS))["sessionId"]
    (before,) = await portico.gateway.store.processes.all()
    assert (await aap.send_turn(session, "go on"))["messages"] == [{"role": "assistant", "content": '2["ask"]'}]
    assert (before,) == tuple(await portico.gateway.store.processes.all())
    # Settings sent with answers are stored.
    name = write_scenario([{"app_tool": {"id": "w{turn}", "name": "get_weather"}}, {"text": "{options.token}"}])
    session = (await aap.create_session(options={"scenario": name}, tools=APPLICATION_TOOLS))["sessionId"]
    answer = {"role": "tool", "toolCallId": "w1", "content": "x"}
    await aap.send_turn(session, answer, agent={"options": {"token": "later"}}, tools=APPLICATION_TOOLS[:1])
    found = await aap.get_session(session)
    assert found["agent"]["options"]["token"] == "***"
    assert found["tools"] == APPLICATION_TOOLS[:1]
    assert (await aap.send_turn(session, "again"))["stopReason"] == "tool_use"
    done = await aap.send_turn(session, answer | {"toolCallId": "w2"})
    assert done["messages"] == [{"role": "assistant", "content": "later"}]


async def test_twenty_parallel_calls_with_an_image_and_five_megabytes(aap: AapClient, write_scenario: WriteScenario) -> None:
    calls = [{"app_tool": {"id": f"c{n}", "name": "get_weather", "input": {"n": n}}} for n in range(20)]
    template = " ".join(f"{{results.c{n}}}" for n in range(2, 20))
    name = write_scenario([{"parallel": {"calls": calls}}, {"text": template}])
    pending = await aap.create_session(options={"scenario": name}, tools=APPLICATION_TOOLS)
    assert [block["toolCallId"] for block in pending["messages"][0]["content"]] == [f"c{n}" for n in range(20)]
    pixel = [{"type": "text", "text": "a map"}, {"type": "image", "url": "data:image/png;base64,iVBORw0KGgo="}]
    contents = ["x" * 5_000_000, pixel, *(f"r{n}" for n in range(2, 20))]
    answers = [{"role": "tool", "toolCallId": f"c{n}", "content": content} for n, content in enumerate(contents)]
    done = await aap.send_turn(pending["sessionId"], *reversed(answers))
    assert done["messages"] == [{"role": "assistant", "content": " ".join(f"r{n}" for n in range(2, 20))}]
    kept = {m["toolCallId"]: m["content"] for m in await aap.get_history(pending["sessionId"]) if m["role"] == "tool"}
    assert kept == {answer["toolCallId"]: answer["content"] for answer in answers}


async def test_text_before_a_granted_result_stays_before_it(aap: AapClient, write_scenario: WriteScenario) -> None:
    first, second = ({"tool_call": {"id": i, "name": "shell", "result": i}} for i in ("a", "b"))
    name = write_scenario([first, {"text": "between"}, second, {"text": "after"}])
    session = (await aap.create_session(options={"scenario": name}, grants=[{"name": "shell"}]))["sessionId"]
    for call in ("a", "b"):
        answer = await aap.send_turn(session, YES | {"toolCallId": call})
        assert [message["role"] for message in answer["messages"]] == ["tool", "assistant"]
    assert [m["role"] for m in await aap.get_history(session)] == ["user", *["assistant", "tool"] * 2, "assistant"]
