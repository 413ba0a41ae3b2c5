"""AAP version 1, "Response": each event, each JSON response and each message, exactly as the document shows it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.documents.documents import Json, WriteScenario, agent, plain, read_event, read_stream, sections, user, whole
from tests.support.daemon import RunningGateway

RESPONSE = sections("aap_response")
EVENTS = {name: read_event(frame) for name, frame in RESPONSE["SSE Events"].items()}
MESSAGES = RESPONSE["Message Format"]
WEATHER = {"name": "get_weather", "description": "Current weather.", "inputSchema": {"type": "object"}}
CALL = {"id": "call_001", "name": "get_weather", "input": {"location": "Tokyo"}, "result": "Tokyo: 18°C, partly cloudy"}


def named(session: str) -> list[tuple[str, Any]]:
    """Return the event that begins the stream of `PUT /session`, with the id of this session."""
    assert list(EVENTS["session_start"][1]) == ["sessionId"]
    return [("session_start", {"sessionId": session})]


async def created(portico: RunningGateway, scenario: str, **body: Any) -> Any:
    """Send `PUT /session`; return its response, or the events of its stream."""
    answer = await portico.client.put("/session", json={"agent": agent(scenario), "messages": [user()], **body})
    if body.get("stream", "none") != "none":
        return read_stream(answer)
    assert answer.is_success, answer.text
    assert answer.headers["content-type"].split(";")[0] == "application/json"
    return plain(answer.json())


async def turn(portico: RunningGateway, session: str, *messages: Json, **body: Any) -> Any:
    """Send `POST /session/:id`; return its response, or the events of its stream."""
    answer = await portico.client.post(f"/session/{session}", json={"messages": [*messages], **body})
    if body.get("stream", "none") != "none":
        return read_stream(answer)
    assert answer.status_code == 200, answer.text
    return plain(answer.json())


async def test_events_of_the_mode_delta(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    thought, text = EVENTS["thinking_delta"][1]["delta"], EVENTS["text_delta"][1]["delta"]
    scenario = write_scenario([whole("thinking", thought), {"tool_call": CALL}, whole("text", text)])
    middle = [EVENTS[name] for name in ("thinking_delta", "tool_call", "tool_result", "text_delta")]
    found = await created(portico, scenario, stream="delta")
    session = found[0][1]["sessionId"]
    assert isinstance(session, str) and session
    assert found == [*named(session), EVENTS["turn_start"], *middle, EVENTS["turn_stop"]]
    later = await turn(portico, session, user(), stream="delta")
    assert later[:2] == [EVENTS["turn_start"], EVENTS["thinking_delta"]] and later[-1] == EVENTS["turn_stop"]
    assert plain((await portico.client.get("/sessions")).json()) == {"sessions": [session]}


async def test_deltas_are_incremental(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    scenario = write_scenario([{"thinking": {"text": "abcd", "chunk": 2}}, {"text": {"text": "efgh", "chunk": 2}}])
    found = await created(portico, scenario, stream="delta")
    assert [data["delta"] for name, data in found if name == "thinking_delta"] == ["ab", "cd"]
    assert [data["delta"] for name, data in found if name == "text_delta"] == ["ef", "gh"]


async def test_events_of_the_mode_message(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    """Each of several messages is one event, although the agent sends deltas. Calls come as they happen."""
    thought, text = EVENTS["thinking"][1]["thinking"], EVENTS["text"][1]["text"]
    steps = [{"thinking": {"text": thought, "chunk": 3}}, {"tool_call": CALL}, {"text": {"text": text, "chunk": 3}}]
    scenario = write_scenario([*steps, {"message_end": True}, {"text": "And it stays so."}])
    middle = [EVENTS[name] for name in ("thinking", "tool_call", "tool_result", "text")]
    found = await created(portico, scenario, stream="message")
    second = ("text", {"text": "And it stays so."})
    assert found == [*named(found[0][1]["sessionId"]), EVENTS["turn_start"], *middle, second, EVENTS["turn_stop"]]


async def test_call_of_an_application_stops_a_stream(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    call = {key: CALL[key] for key in ("id", "name", "input")}
    scenario = write_scenario([{"app_tool": call}])
    for mode in ("delta", "message"):
        found = await created(portico, scenario, stream=mode, tools=[WEATHER])
        assert found[1:] == [EVENTS["turn_start"], EVENTS["tool_call"], ("turn_stop", {"stopReason": "tool_use"})]


STOPS: dict[str, list[Json]] = {
    "end_turn": [{"text": "x"}],
    "tool_use": [{"app_tool": {"name": "get_weather"}}],
    "max_tokens": [{"text": "x"}, {"stop": "max_tokens"}],
    "refusal": [{"text": "x"}, {"stop": "refusal"}],
    "error": [{"text": "x"}, {"stop": {"reason": "error", "message": "away"}}],
}


@pytest.mark.parametrize("reason", RESPONSE["Stop reasons"])
async def test_stop_reasons(portico: RunningGateway, write_scenario: WriteScenario, reason: str) -> None:
    scenario = write_scenario(STOPS[reason])
    assert (await created(portico, scenario, tools=[WEATHER]))["stopReason"] == reason
    found = await created(portico, scenario, tools=[WEATHER], stream="delta")
    assert [event for event in found if event[0] == "turn_stop"] == [found[-1]] == [("turn_stop", {"stopReason": reason})]


TEXT = whole("text", "The weather in Tokyo is 18°C, partly cloudy.")
SEARCH = {"id": "call_002", "name": "web_search", "input": {"query": "Tokyo weather today"}, "result": CALL["result"]}
JSON_RESPONSES: list[tuple[str, list[Json]]] = [
    ("PUT /session additionally includes sessionId", [TEXT]),
    ("With thinking", [whole("thinking", "The user wants Tokyo weather. I should use the get_weather tool."), TEXT]),
    (
        "When an application-side tool is needed, or an untrusted server-side tool requires permission",
        [{"app_tool": {key: CALL[key] for key in ("id", "name", "input")}}],
    ),
    (
        "When an application-side tool is needed, or an untrusted server-side tool requires permission",
        [{"tool_call": {**CALL, "ask": True}}],
    ),
    ("When a trusted server-side tool was called inline", [{"tool_call": SEARCH}, TEXT]),
]


@pytest.mark.parametrize(("title", "steps"), JSON_RESPONSES)
async def test_json_responses(portico: RunningGateway, write_scenario: WriteScenario, title: str, steps: list[Json]) -> None:
    shown = RESPONSE["JSON Response"][title]
    # A tool of the application and one of the agent must not have the same name.
    tools = [WEATHER] if "app_tool" in steps[0] else []
    for fields in ({"stream": "none"}, {}):
        found = await created(portico, write_scenario(steps), tools=tools, **fields)
        assert found == {**shown, "sessionId": found["sessionId"]}


async def test_normal_response(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    first = await created(portico, write_scenario([TEXT]))
    assert await turn(portico, first["sessionId"], user()) == RESPONSE["JSON Response"]["Normal response"]


SEED = [MESSAGES[f"{kind} message"] for kind in ("System", "User", "Assistant", "Tool result")]


async def test_messages_are_kept_as_they_are_sent(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    blocks = [{"type": "text", "text": "And in"}, {"type": "text", "text": " Kyoto?"}]
    result = {**MESSAGES["Tool result message"], "toolCallId": "call_002", "content": blocks[:1]}
    call = {"role": "assistant", "content": [{**MESSAGES["Assistant message"]["content"][2], "toolCallId": "call_002"}]}
    messages = [*SEED, call, result, {"role": "user", "content": blocks}]
    found = await created(portico, write_scenario([{"text": "{system}|{prompt}"}]), messages=messages)
    answer = {"role": "assistant", "content": "You are a helpful assistant that responds concisely.|And in Kyoto?"}
    assert found["messages"] == [answer]
    session = plain((await portico.client.get(f"/session/{found['sessionId']}")).json())
    assert session["history"]["full"] == [*messages, answer]


@pytest.mark.parametrize("permission", MESSAGES["Tool permission message"])
async def test_permissions(portico: RunningGateway, write_scenario: WriteScenario, permission: Json) -> None:
    """The agent continues, the model is told, the history has the result or the denial, and never the permission."""
    scenario = write_scenario([{"tool_call": {**SEARCH, "ask": True}}, {"text": "It says: {results.call_002}"}])
    first = await created(portico, scenario)
    assert first["stopReason"] == "tool_use"
    found = await turn(portico, first["sessionId"], permission)
    result, answer = found["messages"]
    assert {**result, "content": ""} == {"role": "tool", "toolCallId": "call_002", "content": ""}
    if permission["granted"]:
        assert result["content"] == SEARCH["result"]
    else:
        assert "denied" in result["content"] and permission["reason"] in result["content"]
    assert answer == {"role": "assistant", "content": f"It says: {result['content']}"}
    session = plain((await portico.client.get(f"/session/{first['sessionId']}")).json())
    assert session["history"]["full"] == [user(), *first["messages"], *found["messages"]]
