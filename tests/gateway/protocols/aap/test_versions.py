"""Versions of AAP: what each has of one session, as a table of shapes, and requests at the wrong base URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.aap_client import BASE_URLS, ROOT, V3, AapClient
from tests.support.cluster import placement
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.event_streams import replay_events
from tests.support.requests import expect_error, session_body, user_message
from tests.support.sse import parse_events

WriteScenario = Callable[..., str]
WEATHER = {"name": "get_weather", "title": "Weather", "description": "The weather.", "inputSchema": {"type": "object"}}
CALL = {"app_tool": {"id": "w", "name": "get_weather", "input": {"location": "Tokyo"}}}
RAIN = {"role": "tool", "toolCallId": "w", "content": "rain"}
FIELDS = {"sessionId", "agent", "tools", "x-portico"}
FRAME_FIELDS = {
    "turn_start": set[str](),
    "thinking_delta": {"delta"},
    "text_delta": {"delta"},
    "tool_call": {"toolCallId", "name", "input"},
    "tool_result": {"toolCallId", "content"},
    "turn_stop": {"stopReason", "x-portico"},
}


async def test_session_of_one_version_can_be_used_in_all_versions(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    name = write_scenario({"when": "go", "steps": [CALL, {"text": "{results.w}"}]}, [{"text": "{turn}"}])
    clients = [AapClient(portico.client, base) for base in BASE_URLS]
    for maker in clients:
        options = {"scenario": name, "token": "tok-1234"}
        session = (await maker.create_session(options=options, tools=[WEATHER]))["sessionId"]
        for first, second in zip(clients, [*clients[1:], clients[0]], strict=True):
            assert (await first.send_turn(session, "go"))["stopReason"] == "tool_use"
            seen = [await client.get_session(session) for client in clients]
            assert all(found == seen[0] for found in seen), "the same session in the form of each version"
            assert (seen[0]["state"], seen[0]["tools"]) == ("waiting", [WEATHER])
            assert seen[0]["agent"]["options"]["token"] == "***"
            answer = await second.send_turn(session, RAIN)
            assert answer["messages"] == [{"role": "assistant", "content": "rain"}]
        for client in clients:
            assert await client.list_sessions() == {"sessions": [session]}
        assert (await maker.delete(session)).status_code == 204
        for client in clients:
            await expect_error(client.get(session), 404)


async def test_shapes_of_each_version(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    """For parsers that reject unknown fields: no field is beside those of the protocol and `x-portico`."""
    options = {
        "scenario": write_scenario({"when": "call", "steps": [CALL]}, [{"text": "a"}, {"stop": "refusal"}]),
        "token": "tok-1",
    }
    made = []
    for base in BASE_URLS:
        aap, client = AapClient(portico.client, base), portico.client
        meta = (await client.get(base.url + "/meta")).json()
        assert meta["version"] == base.version
        [script] = [agent for agent in meta["agents"] if agent["name"] == "script"]
        assert {key for tool in script["tools"] for key in tool} == {"name", "description", aap.schema}
        assert script["capabilities"]["history"] == {"compacted": {}, "full": {}}
        for prompt in ("call", "hello"):
            created = await aap.create_session("script", prompt, options=options, tools=[WEATHER])
            assert created.keys() <= {"sessionId", "stopReason", "messages", "x-portico"}
            made.append(created["sessionId"])
        shown = (await aap.get(made[-1])).json()
        assert shown.keys() == FIELDS | ({"history"} if base.version == 1 else set())
        assert list(shown["tools"][0]) == ["name", "title", "description", aap.schema]
        kind = "history" if base.version == 1 else "type"
        made.append((await aap.create_session("echo"))["sessionId"])
        assert "full" in await expect_error(aap.request_history(made[-1], "compacted"), 404)
        for wrong in ("junk", "", *([] if base.version == 1 else [None])):
            assert kind in await expect_error(aap.request_history(made[-1], wrong), 400)
        listed = (await client.get(base.url + "/sessions")).json()
        assert list(listed) == ["sessions"] and "tok-1" not in str(listed)
        if base.version == 1:
            assert listed["sessions"] == made[::-1]
            continue
        assert listed["sessions"] == [(await aap.get(session)).json() for session in made[::-1]]
        extensions = [one["x-portico"] for one in listed["sessions"][1:3]]
        assert [(one["state"], one["stopReason"]) for one in extensions] == [("idle", "refusal"), ("waiting", "tool_use")]


async def test_frames_have_no_field_beside_those_of_the_protocol(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    work = [{"thinking": "hm"}, {"text": "x"}, {"tool_call": {"id": "c", "name": "lookup", "input": {"query": "q"}}}]
    fail = {"when": "fail", "steps": [{"stop": {"reason": "error", "message": "away"}}]}
    options = {"scenario": write_scenario(fail, [*work, {"usage": {"input_tokens": 1}}])}
    grants = [{"name": "lookup", "trust": True}]
    for base in (ROOT, V3):
        aap = AapClient(portico.client, base)
        session, events = await aap.create_streamed(options=options, grants=grants, tools=[WEATHER], stream="delta")
        for name, data in [*events, *await aap.stream_turn(session, user_message("fail"), stream="delta")]:
            assert data.keys() <= FRAME_FIELDS[name]
        answer = (await aap.post(session, {"messages": [user_message("fail")]})).json()
        assert list(answer) == ["stopReason", "messages", "x-portico"]
        assert list((await aap.get(session)).json()["agent"]) == ["name", "tools", "options"]
        for message in await aap.get_history(session):
            own = {"x-portico"} if message["role"] == "assistant" else set()
            assert message.keys() <= {"role", "content", "toolCallId"} | own


async def test_extensions_of_each_version(portico: RunningGateway) -> None:
    """Events, cancel, the queue and idempotency keys, under the session path of each version."""
    keyed, turn = {"Idempotency-Key": "job-1"}, {"messages": [user_message("once")], "stream": "delta"}
    client = portico.client
    for base in BASE_URLS:
        aap = AapClient(client, base)
        session = (await aap.create_session("echo", "hi"))["sessionId"]
        path = aap.path(session)
        answer = await client.get(f"{path}/events", params={"after": "0", "until": "turn_stop"})
        assert parse_events(answer.text) == await replay_events(client, session)
        assert (await client.post(f"{path}/cancel")).json()["cancelled"] is False
        assert (await client.post(aap.path("none") + "/cancel")).status_code == 404
        turns = [await client.post(aap.turns(session), json=turn, headers=keyed) for _ in range(2)]
        assert turns[0].text == turns[1].text
        assert [event[1] for event in parse_events(turns[0].text)] == ["turn_start", "text_delta", "turn_stop"]
        message_id = (await client.post(f"{path}/queue", json={"messages": [user_message("a")]})).json()["id"]
        assert (await client.post(f"{path}/queue/continue")).status_code == 200
        await aap.wait_until_idle(session)
        assert message_id in await expect_error(client.delete(f"{path}/queue/{message_id}"), 404)
        assert (await client.get(f"{path}/queue")).json()["messages"] == []
    body = {"agent": {"name": "echo"}, "messages": []}
    creations = [await client.post("/aap/v3/sessions", json=body, headers=keyed) for _ in range(2)]
    assert [answer.status_code for answer in creations] == [201, 201]
    assert creations[0].json() == creations[1].json()
    other = await client.post("/aap/v3/sessions", json=body | {"messages": [user_message()]}, headers=keyed)
    assert other.status_code == 409


async def test_session_of_a_removed_agent_stays_listed(tmp_path: Path) -> None:
    config = gateway_config(tmp_path)
    agents = {**config["agents"], "gone": {"driver": "echo"}}
    async with run_gateway({**config, "agents": agents}) as portico:
        session = (await AapClient(portico.client).create_session("gone"))["sessionId"]
    async with run_gateway(config) as portico:
        for base in (ROOT, V3):
            aap = AapClient(portico.client, base)
            assert await aap.list_sessions() == {"sessions": [session]}
            # A node shows a session whose agent is nowhere, too.
            needs_agent = aap.post(session, {"messages": [user_message()]}) if placement() else aap.get(session)
            assert "'gone'" in await expect_error(needs_agent, 503)


WRONG_BASES = [
    ("POST", "/sessions", 405, "v3", ["/aap/v3"]),
    ("POST", "/sessions/sess_x/turns", 404, "v3", ["/aap/v3"]),
    ("GET", "/sessions/sess_x", 404, "v3", ["/aap/v3"]),
    ("GET", "/session/sess_x/history", 404, "v2", ["/aap/v2"]),
    ("POST", "/aap/v1/sessions", 405, "v3", ["/aap/v3"]),
    ("GET", "/aap/v1/session/sess_x/history?type=full", 404, "v2", ["/aap/v2"]),
    ("POST", "/aap/v2/sessions", 405, "v3", ["/aap/v3"]),
    ("DELETE", "/aap/v2/sessions/sess_x", 404, "v3", ["/aap/v3"]),
    ("PUT", "/aap/v3/session", 404, "v1 and v2", ["/aap/v1", "/aap/v2"]),
    ("POST", "/aap/v3/session/sess_x", 404, "v1 and v2", ["/aap/v1", "/aap/v2"]),
    ("GET", "/aap/v3/session/sess_x", 404, "v1 and v2", ["/aap/v1", "/aap/v2"]),
]
WITHOUT_BASE = [
    ("GET", "/v3/meta", "v3"),
    ("GET", "/v1/meta", "v1"),
    ("POST", "/v3/sessions", "v3"),
    ("POST", "/v3/sessions/sess_x/turns", "v3"),
    ("PUT", "/v2/session", "v2"),
    ("GET", "/aap/v3/v3/meta", "v3"),
    ("POST", "/api/v3/sessions", "v3"),
]


async def test_error_at_the_wrong_base_url_names_the_right_one(portico: RunningGateway) -> None:
    for method, path, status, versions, bases in WRONG_BASES:
        text = await expect_error(portico.client.request(method, path), status)
        assert f"is of AAP {versions}," in text, text
        assert all(base in text.split("base URL to ")[1] for base in bases), text
    for method, path in (("GET", "/aap"), ("GET", "/aap/v4/meta"), ("PUT", "/aap/session")):
        text = await expect_error(portico.client.request(method, path), 404)
        assert "/aap/v3 or /aap/v2 or /aap/v1" in text
    for path in ("/aap/v3", "/aap/v3/nothing", "/aap/v1x/meta", "/aapx", "/v3", "/v3/nothing", "/v1/execute/x"):
        assert "base URL to" not in await expect_error(portico.client.get(path), 404)
    # A path with a version but without the base URL, and one that ends as one of the protocol.
    for method, path, version in WITHOUT_BASE:
        text = await expect_error(portico.client.request(method, path), 404)
        assert f"AAP {version} has the base URL /aap/{version};" in text, path
    all_bases = "AAP has the base URLs /aap/v3 or /aap/v2 or /aap/v1"
    for path in ("/api/meta", "/v4/meta", "/gateway/sessions"):
        assert all_bases in await expect_error(portico.client.get(path), 404)
    assert all_bases in await expect_error(portico.client.get("/v3/meta", headers={"Authorization": "Bearer wrong"}), 404)


async def test_tool_with_the_schema_name_of_another_version_is_refused(portico: RunningGateway) -> None:
    other = {"name": "t", "description": "", "parameters": {"type": "object"}}
    for base in BASE_URLS[:3]:
        body = session_body("script", tools=[other])
        text = await expect_error(portico.client.put(base.url + "/session", json=body), 400)
        assert text.startswith("tools.0: ") and "`inputSchema`" in text and "/aap/v3" in text, text
    body = {"agent": {"name": "script"}, "tools": [WEATHER]}
    text = await expect_error(portico.client.post("/aap/v3/sessions", json=body), 400)
    assert text.startswith("tools.0: ") and "`parameters`" in text and "/aap/v1" in text, text


async def test_openapi_has_an_operation_id_and_a_tag_for_each_endpoint(portico: RunningGateway) -> None:
    document = (await portico.client.get("/openapi.json")).json()
    operations = [(path, operation) for path, methods in document["paths"].items() for operation in methods.values()]
    names = [operation["operationId"] for _, operation in operations]
    assert len(set(names)) == len(names)
    assert {"aap_v1_at_the_root_create_session", "aap_v1_create_session", "aap_v2_create_turn", "aap_v3_create_turn"} <= set(
        names
    )
    for path, operation in operations:
        (tag,) = operation["tags"]
        if path.startswith("/aap/"):
            assert tag == f"AAP {path.split('/')[2]}"
            assert "422" not in operation["responses"], "a bad request is a 400"
    assert all("__" not in name for name in document["components"]["schemas"])
    tools = {name: document["components"]["schemas"][name]["required"] for name in ("ApplicationTool", "ClientTool")}
    assert tools == {
        "ApplicationTool": ["name", "description", "inputSchema"],
        "ClientTool": ["name", "description", "parameters"],
    }
