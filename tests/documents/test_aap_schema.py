"""AAP version 1, "Schema": each type and each field, in requests that the gateway accepts and in its responses."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.documents.documents import Json, WriteScenario, agent, load, plain, read_stream, user
from tests.support.daemon import RunningGateway, gateway_config, run_gateway

SCHEMA = load("aap_schema")["$defs"]
TOOL = {"name": "look", "title": "Look", "description": "Looks.", "inputSchema": {"type": "object", "properties": {}}}
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGES = [{"type": "image", "url": "https://example.com/a.png"}, {"type": "image", "url": PIXEL}]


def check(name: str, value: Any) -> Any:
    """Check a value without the gateway's own field against a type of the document, and return it."""
    value = plain(value)
    Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": SCHEMA}).validate(value)
    return value


def fields(schema: Json) -> set[str]:
    """Return the paths of all fields of a type, without those of the types that it names."""
    found: set[str] = set()
    for name, field in schema.get("properties", {}).items():
        found |= {name} | {f"{name}.{inner}" for inner in fields(field)}
    return found.union(*(fields(variant) for variant in schema.get("oneOf", [])))


def paths(value: Any) -> set[str]:
    """Return the paths of all fields of a value."""
    found: set[str] = set()
    for name, field in value.items() if isinstance(value, dict) else ():
        found |= {name} | {f"{name}.{inner}" for inner in paths(field)}
    return found


async def test_meta(portico: RunningGateway) -> None:
    found = check("MetaResponse", (await portico.client.get("/meta")).json())
    [script] = [one for one in found["agents"] if one["name"] == "script"]
    assert fields(SCHEMA["AgentInfo"]) <= paths(script)
    assert {option["type"] for option in script["options"]} == {"text", "secret", "select"}
    assert all(option["default"] in option["options"] for option in script["options"] if option["type"] == "select")
    assert fields(SCHEMA["MetaResponse"]) <= paths(found)


async def test_create_session_and_its_response(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    config = agent(write_scenario([{"text": "x"}, {"app_tool": {"name": "look"}}]))
    for tools in ([{"name": "lookup"}], [{"name": "lookup", "trust": True}, {"name": "shell", "trust": False}]):
        body = check("CreateSessionRequest", {"agent": {**config, "tools": tools}, "messages": [user()], "tools": [TOOL]})
        for mode in ("none", None):
            answer = await portico.client.put("/session", json={**body, **({"stream": mode} if mode else {})})
            assert answer.is_success, answer.text
            assert fields(SCHEMA["AgentResponse"]) == set(check("AgentResponse", answer.json()))
        for mode in ("delta", "message"):
            for name, data in read_stream(await portico.client.put("/session", json={**body, "stream": mode})):
                check("SSEEvent", {"event": name, **data})


EVERY_EVENT = [
    {"thinking": "hm"},
    {"tool_call": {"name": "lookup", "input": {"query": "x"}, "result": [{"type": "text", "text": "3 hits"}]}},
    {"text": "x"},
]


async def test_every_event(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    scenario = write_scenario(EVERY_EVENT)
    seen: set[str] = set()
    for mode in ("delta", "message"):
        config = agent(scenario, tools=[{"name": "lookup", "trust": True}])
        answer = await portico.client.put("/session", json={"agent": config, "messages": [user()], "stream": mode})
        events = read_stream(answer)
        for name, data in events:
            check("SSEEvent", {"event": name, **data})
        seen |= {name for name, _ in events}
        own = {"delta": {"text_delta", "thinking_delta"}, "message": {"text", "thinking"}}
        assert not seen & own["message"] if mode == "delta" else own["message"] <= seen
    assert seen == {variant["properties"]["event"]["const"] for variant in SCHEMA["SSEEvent"]["oneOf"]}


async def test_session_and_its_history(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    """Every message and every block of a history comes back as it was sent; secrets do not."""
    messages: list[Json] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Look:"}, *IMAGES]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "toolCallId": "c", "name": "look", "input": {"deep": {"er": [1, None]}}},
            ],
        },
        {"role": "tool", "toolCallId": "c", "content": [{"type": "text", "text": "A dot."}, IMAGES[1]]},
        {"role": "assistant", "content": "A dot."},
        user(),
    ]
    config = agent(write_scenario([{"text": "x"}]), tools=[{"name": "lookup", "trust": True}])
    config["options"] |= {"token": "tok-s3cret", "pace": "fast"}
    body = check("CreateSessionRequest", {"agent": config, "messages": messages, "tools": [TOOL], "stream": "none"})
    made = check("AgentResponse", (await portico.client.put("/session", json=body)).json())
    answer = await portico.client.get(f"/session/{made['sessionId']}")
    found = check("SessionResponse", answer.json())
    assert fields(SCHEMA["SessionResponse"]) <= paths(found)
    assert found["sessionId"] == made["sessionId"]
    assert found["agent"] == {**config, "options": {**config["options"], "token": "***"}}
    assert found["tools"] == [TOOL]
    assert found["history"]["full"] == [*messages, *made["messages"]]
    assert "tok-s3cret" not in answer.text


async def test_list_of_sessions(tmp_path: Any) -> None:
    async with run_gateway(gateway_config(tmp_path)) as portico:
        body = {"agent": {"name": "echo"}, "messages": [user()]}
        made = {(await portico.client.put("/session", json=body)).json()["sessionId"] for _ in range(3)}
        pages = [check("SessionListResponse", (await portico.client.get("/sessions?limit=2")).json())]
        after = {"after": pages[0]["next"], "limit": "2"}
        pages.append(check("SessionListResponse", (await portico.client.get("/sessions", params=after)).json()))
    assert [set(page) for page in pages] == [{"sessions", "next"}, {"sessions"}]
    assert sorted(made) == sorted(pages[0]["sessions"] + pages[1]["sessions"])


async def test_a_turn_overrides_settings_of_the_session(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    """Options are merged by key, tools replaced; both stay. The name of the agent cannot be changed."""
    scenario = write_scenario([{"text": "{options.pace} {turn}"}])
    config = agent(scenario, tools=[{"name": "lookup", "trust": True}])
    made = (await portico.client.put("/session", json={"agent": config, "messages": [user()], "tools": [TOOL]})).json()
    path = f"/session/{made['sessionId']}"
    override = {"tools": [{"name": "shell"}], "options": {"pace": "fast"}}
    other = {**TOOL, "name": "other"}
    body = {"agent": override, "messages": [user()], "tools": [other], "stream": "none"}
    turn = check("AgentResponse", (await portico.client.post(path, json=check("SessionTurnRequest", body))).json())
    assert set(turn) == fields(SCHEMA["AgentResponse"]) - {"sessionId"}
    assert turn["messages"] == [{"role": "assistant", "content": "fast 2"}]
    for _ in range(2):
        found = check("SessionResponse", (await portico.client.get(path)).json())
        assert found["agent"]["options"] == {"scenario": scenario, "pace": "fast"}
        assert plain(found["agent"]["tools"]) in ([{"name": "shell"}], [{"name": "shell", "trust": False}])
        assert found["tools"] == [other]
        await portico.client.post(path, json={"messages": [user()]})
    renamed = await portico.client.post(path, json={"agent": {"name": "echo"}, "messages": [user()]})
    assert renamed.status_code == 400


ALONE = {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [user()]},
        {"agent": {}, "messages": [user()]},
        {"agent": {"name": "echo"}},
        {"agent": {"name": "echo"}, "messages": []},
        {"agent": {"name": "echo"}, "messages": [user(), ALONE]},
        {"agent": {"name": "echo"}, "messages": [user()], "stream": "both"},
    ],
    ids=["no agent", "no name", "no messages", "empty messages", "last message not of a user", "no such stream"],
)
async def test_requests_of_another_shape_are_refused(portico: RunningGateway, body: Json) -> None:
    answer = await portico.client.put("/session", json=body)
    assert answer.status_code == 400 and answer.json()["error"]
    assert (await portico.client.get("/sessions")).json()["sessions"] == []


@pytest.mark.parametrize(
    "messages",
    [[], [user(), user()], [user(), ALONE], [ALONE], [{"role": "system", "content": "x"}]],
    ids=["none", "two", "assistant at the end", "assistant", "system"],
)
async def test_a_turn_has_one_user_message_or_answers(portico: RunningGateway, messages: list[Json]) -> None:
    made = (await portico.client.put("/session", json={"agent": {"name": "echo"}, "messages": [user()]})).json()
    path = f"/session/{made['sessionId']}"
    before = (await portico.client.get(path)).json()
    assert (await portico.client.post(path, json={"messages": messages})).status_code == 400
    assert (await portico.client.get(path)).json() == before
