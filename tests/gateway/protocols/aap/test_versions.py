"""Differences between the versions of AAP, one session used in all versions, and requests at the wrong base URL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.store import Store
from tests.support.aap_client import BASE_URLS, AapClient, BaseUrl
from tests.support.cluster import placement
from tests.support.daemon import Daemon, RunningGateway, gateway_config, run_gateway
from tests.support.requests import expect_error, session_body, user_message
from tests.support.stores import store_url
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
V3 = BASE_URLS[3]
WEATHER = {"name": "get_weather", "title": "Weather", "description": "The weather.", "inputSchema": {"type": "object"}}
CALL = {"app_tool": {"id": "w", "name": "get_weather", "input": {"location": "Tokyo"}}}
RAIN = {"role": "tool", "toolCallId": "w", "content": "rain"}


@pytest.fixture(params=BASE_URLS, ids=str)
def base(request: pytest.FixtureRequest) -> BaseUrl:
    """Each base URL, also in `make test`."""
    found: BaseUrl = request.param
    return found


@pytest.fixture
def aap_v3(portico: RunningGateway) -> AapClient:
    return AapClient(portico.client, V3)


async def test_each_base_url_reports_its_version(aap: AapClient) -> None:
    body = (await aap.http.get(aap.base.url + "/meta")).json()
    assert body["version"] == aap.base.version
    (script,) = [agent for agent in body["agents"] if agent["name"] == "script"]
    assert {key for tool in script["tools"] for key in tool} == {"name", "description", aap.schema}
    assert script["capabilities"]["history"] == {"compacted": {}, "full": {}}


async def test_session_of_one_version_can_be_used_in_all_versions(
    portico: RunningGateway, base: BaseUrl, write_scenario: WriteScenario
) -> None:
    name = write_scenario({"when": "go", "steps": [CALL, {"text": "{results.w}"}]}, [{"text": "{turn}"}])
    clients = [AapClient(portico.client, other) for other in BASE_URLS]
    made = await AapClient(portico.client, base).create_session(options={"scenario": name, "token": "tok-1234"}, tools=[WEATHER])
    session = made["sessionId"]
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
    assert (await clients[-1].delete(session)).status_code == 204
    for client in clients:
        await expect_error(client.get(session), 404)


async def test_list_contains_the_state_of_each_session(
    portico: RunningGateway, base: BaseUrl, write_scenario: WriteScenario
) -> None:
    aap = AapClient(portico.client, base)
    options = {
        "scenario": write_scenario({"when": "call", "steps": [CALL]}, [{"text": "a"}, {"stop": "refusal"}]),
        "token": "tok-1234",
    }
    made = [
        (await aap.create_session("script", prompt, options=options, tools=[WEATHER]))["sessionId"]
        for prompt in ("call", "hello")
    ]
    made.append((await aap.create_session("echo"))["sessionId"])
    listed = (await portico.client.get(base.url + "/sessions")).json()["sessions"]
    if base.version == 1:
        assert listed == made[::-1]
        return
    assert listed == [(await aap.get(session)).json() for session in made[::-1]]
    extensions = [one["x-portico"] for one in listed]
    assert [one["state"] for one in extensions] == ["idle", "idle", "waiting"]
    assert [one["stopReason"] for one in extensions] == ["end_turn", "refusal", "tool_use"]
    assert list(listed[-1]["tools"][0]) == ["name", "title", "description", aap.schema]
    assert "tok-1234" not in str(listed)


async def test_session_of_a_removed_agent_stays_listed(base: BaseUrl, tmp_path: Path) -> None:
    config = gateway_config(tmp_path)
    agents = {**config["agents"], "gone": {"driver": "echo"}}
    async with run_gateway({**config, "agents": agents}) as portico:
        session = (await AapClient(portico.client, base).create_session("gone"))["sessionId"]
    async with run_gateway(config) as portico:
        aap = AapClient(portico.client, base)
        assert await aap.list_sessions() == {"sessions": [session]}
        # A node shows a session whose agent is nowhere, too.
        needs_agent = aap.post(session, {"messages": [user_message()]}) if placement() else aap.get(session)
        assert "'gone'" in await expect_error(needs_agent, 503)


async def test_version_3_creates_a_session_without_a_turn(
    portico: RunningGateway, aap_v3: AapClient, write_scenario: WriteScenario
) -> None:
    answer = await aap_v3.post_sessions(agent={"name": "script", "options": {"scenario": write_scenario([{"text": "{turn}"}])}})
    assert answer.status_code == 201
    assert list(answer.json()) == ["sessionId"]
    session = answer.json()["sessionId"]
    assert not await portico.gateway.store.processes.all(), "the agent is not started"
    found = await aap_v3.get_session(session)
    assert (found["state"], found["history"]) == ("idle", {"full": []})
    assert "stopReason" not in found
    assert await aap_v3.stream_turn(session, user_message(), stream="delta") == [
        ("turn_start", {}),
        ("text_delta", {"delta": "1"}),
        ("turn_stop", {"stopReason": "end_turn"}),
    ]


async def test_version_3_seeds_a_history(aap_v3: AapClient, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"text": "{system}|"}, {"remember": True}])
    seed = [
        {"role": "system", "content": "Answer briefly."},
        user_message("first"),
        {"role": "assistant", "content": [{"type": "tool_use", "toolCallId": "old", "name": "lookup", "input": {}}]},
        {"role": "tool", "toolCallId": "old", "content": "3 hits"},
        {"role": "assistant", "content": "found"},
    ]
    made = await aap_v3.post_sessions(agent={"name": "script", "options": {"scenario": name}}, messages=seed)
    session = made.json()["sessionId"]
    assert (await aap_v3.get_session(session))["history"]["full"] == seed
    answer = await aap_v3.send_turn(session, "second")
    assert answer["messages"] == [{"role": "assistant", "content": 'Answer briefly.|["first"]'}]
    assert await aap_v3.get_history(session) == [*seed, user_message("second"), *answer["messages"]]


PENDING_CALLS = [
    user_message("How is it?"),
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I ask."},
            {"type": "tool_use", "toolCallId": "w", "name": "get_weather", "input": {"location": "Tokyo"}},
            {"type": "tool_use", "toolCallId": "l", "name": "lookup", "input": {"query": "x"}},
            {"type": "tool_use", "toolCallId": "n", "name": "write_note", "input": {"path": "n", "text": "x"}},
        ],
    },
    {"role": "tool", "toolCallId": "l", "content": "3 hits"},
]
CALL_STEPS = [
    {"text": "I ask."},
    {
        "parallel": [
            CALL,
            {"tool_call": {"id": "l", "name": "lookup", "input": {"query": "x"}, "result": "3 hits"}},
            {"tool_call": {"id": "n", "name": "write_note", "input": {"path": "n", "text": "x"}, "result": "written"}},
        ]
    },
]
NO = {"role": "tool_permission", "toolCallId": "n", "granted": False, "reason": "no"}


async def seeded(aap_v3: AapClient, scenario: str) -> str:
    agent = {"name": "script", "options": {"scenario": scenario}, "tools": [{"name": "lookup"}, {"name": "write_note"}]}
    made = await aap_v3.post_sessions(agent=agent, messages=PENDING_CALLS, tools=[WEATHER])
    assert made.status_code == 201, made.text
    return str(made.json()["sessionId"])


async def test_a_seed_that_ends_in_pending_calls_can_be_answered(aap_v3: AapClient, write_scenario: WriteScenario) -> None:
    session = await seeded(aap_v3, write_scenario([*CALL_STEPS, {"text": "Rain: {results.w}."}]))
    before = await aap_v3.get_session(session)
    assert (before["state"], before["stopReason"]) == ("waiting", "tool_use")
    assert "'n' is still pending" in await expect_error(aap_v3.post(session, {"messages": [RAIN]}), 400)
    assert "'x' is not a pending" in await expect_error(
        aap_v3.post(session, {"messages": [RAIN, NO, {**RAIN, "toolCallId": "x"}]}), 400
    )
    assert await aap_v3.get_session(session) == before
    answer = await aap_v3.send_turn(session, RAIN, NO)
    assert answer["stopReason"] == "end_turn"
    denied = {"role": "tool", "toolCallId": "n", "content": "Tool call denied: no"}
    assert answer["messages"] == [denied, {"role": "assistant", "content": "Rain: rain."}]
    assert await aap_v3.get_history(session) == [*PENDING_CALLS, RAIN, *answer["messages"]]


async def test_a_seed_that_ends_in_pending_calls_can_be_cancelled(aap_v3: AapClient, write_scenario: WriteScenario) -> None:
    session = await seeded(aap_v3, write_scenario([{"text": "Well."}]))
    assert (await aap_v3.send_turn(session, "Never mind"))["messages"] == [{"role": "assistant", "content": "Well."}]
    assert [m["content"] for m in (await aap_v3.get_history(session))[3:5]] == ["Tool call cancelled"] * 2


async def test_call_followed_by_a_user_message_is_not_pending(aap_v3: AapClient, write_scenario: WriteScenario) -> None:
    agent = {"name": "script", "options": {"scenario": write_scenario([{"text": "Well."}])}}
    made = await aap_v3.post_sessions(agent=agent, messages=[*PENDING_CALLS, user_message("never mind")])
    assert (await aap_v3.get_session(made.json()["sessionId"]))["state"] == "idle"


async def test_version_3_refuses_an_invalid_history(aap_v3: AapClient) -> None:
    agent = {"name": "script"}
    for body, named in (
        ({}, "agent: "),
        ({"agent": {"name": "no-such-agent"}}, "'no-such-agent'"),
        ({"agent": agent, "messages": [{"role": "tool_permission", "toolCallId": "x", "granted": True}]}, "messages.0: role"),
        ({"agent": agent, "messages": [user_message([{"type": "image", "url": "file:///etc/passwd"}])]}, "https://"),
        ({"agent": {**agent, "options": {"pace": "slow"}}}, "'pace'"),
        ({"agent": {**agent, "tools": [{"name": "hammer"}]}}, "'hammer'"),
    ):
        assert named in await expect_error(aap_v3.http.post("/aap/v3/sessions", json=body), 400)
    assert await aap_v3.list_sessions() == {"sessions": []}


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


@pytest.mark.parametrize(
    ("method", "path", "base"),
    [
        ("GET", "/v3/meta", "v3"),
        ("GET", "/v1/meta", "v1"),
        ("POST", "/v3/sessions", "v3"),
        ("POST", "/v3/sessions/sess_x/turns", "v3"),
        ("PUT", "/v2/session", "v2"),
        ("GET", "/aap/v3/v3/meta", "v3"),
        ("POST", "/api/v3/sessions", "v3"),
    ],
)
async def test_path_with_a_version_but_without_the_base_url_names_it(
    portico: RunningGateway, method: str, path: str, base: str
) -> None:
    text = await expect_error(portico.client.request(method, path), 404)
    assert f"AAP {base} has the base URL /aap/{base};" in text


async def test_path_that_ends_as_one_of_the_protocol_names_all_base_urls(portico: RunningGateway) -> None:
    bases = "AAP has the base URLs /aap/v3 or /aap/v2 or /aap/v1"
    for path in ("/api/meta", "/v4/meta", "/gateway/sessions"):
        assert bases in await expect_error(portico.client.get(path), 404)
    assert bases in await expect_error(portico.client.get("/v3/meta", headers={"Authorization": "Bearer wrong"}), 404)


async def test_tool_with_the_schema_name_of_another_version_is_refused(portico: RunningGateway) -> None:
    other = {"name": "t", "description": "", "parameters": {"type": "object"}}
    for base in BASE_URLS[:3]:
        body = session_body("script", tools=[other])
        text = await expect_error(portico.client.put(base.url + "/session", json=body), 400)
        assert text.startswith("tools.0: ") and "`inputSchema`" in text and "/aap/v3" in text, text
    body = {"agent": {"name": "script"}, "tools": [WEATHER]}
    text = await expect_error(portico.client.post("/aap/v3/sessions", json=body), 400)
    assert text.startswith("tools.0: ") and "`parameters`" in text and "/aap/v1" in text, text


def _operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(path, operation) for path, methods in document["paths"].items() for operation in methods.values()]


async def test_openapi_has_an_operation_id_and_a_tag_for_each_endpoint(portico: RunningGateway) -> None:
    document = (await portico.client.get("/openapi.json")).json()
    operations = _operations(document)
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


async def test_seeded_session_is_kept_after_the_daemon_is_killed(daemon: Daemon, write_scenario: WriteScenario) -> None:
    name = write_scenario(
        [*CALL_STEPS, {"text": "Rain: {results.w}."}, {"message_end": True}, {"text": "And"}, {"hang": True}], name="hang.json"
    )
    await daemon.start()
    async with daemon.client() as client:
        session = await seeded(AapClient(client, V3), name)
    await daemon.kill()
    await daemon.start()
    async with daemon.client() as client:
        aap_v3 = AapClient(client, V3)
        assert (await aap_v3.get_session(session))["state"] == "waiting"
        async with aap_v3.stream(session, RAIN, NO) as answer:
            async for line in answer.aiter_lines():
                if '"And"' in line:
                    break
        await wait_until(lambda: _stored(daemon, session))
    await daemon.kill()
    await daemon.start()
    async with daemon.client() as client:
        found = await AapClient(client, V3).get_session(session)
    contents = [message["content"] for message in found["history"]["full"][len(PENDING_CALLS) :]]
    assert contents == ["rain", "Tool call denied: no", "Rain: rain.", "And"]
    assert (found["state"], found["stopReason"]) == ("idle", "error")


async def _stored(daemon: Daemon, session: str) -> bool:
    store = await Store.open(store_url(daemon.home / "data"))
    try:
        return any(b'"And"' in body for _, body in await store.events.read(session, 0))
    finally:
        await store.close()


FRAME_FIELDS = {
    "turn_start": set[str](),
    "thinking_delta": {"delta"},
    "text_delta": {"delta"},
    "tool_call": {"toolCallId", "name", "input"},
    "tool_result": {"toolCallId", "content"},
    "turn_stop": {"stopReason", "x-portico"},
}


async def test_responses_have_no_field_beside_those_of_the_protocol_and_x_portico(
    aap: AapClient, write_scenario: WriteScenario
) -> None:
    """For parsers that reject unknown fields. The response of `GET /meta` is checked in test_meta.py."""
    work = [{"thinking": "hm"}, {"text": "x"}, {"tool_call": {"id": "c", "name": "lookup", "input": {"query": "q"}}}]
    fail = {"when": "fail", "steps": [{"stop": {"reason": "error", "message": "away"}}]}
    options = {"scenario": write_scenario(fail, [*work, {"usage": {"input_tokens": 1}}]), "token": "tok-1234"}
    grants = [{"name": "lookup", "trust": True}]
    session, events = await aap.create_streamed(options=options, grants=grants, tools=[WEATHER], stream="delta")
    for name, data in [*events, *await aap.stream_turn(session, user_message("fail"), stream="delta")]:
        assert data.keys() <= FRAME_FIELDS[name]
    answer = (await aap.post(session, {"messages": [user_message("fail")]})).json()
    assert list(answer) == ["stopReason", "messages", "x-portico"]
    fields = {"sessionId", "agent", "tools", "x-portico"} | ({"history"} if aap.base.version == 1 else set())
    listed = (await aap.http.get(aap.base.url + "/sessions")).json()
    assert list(listed) == ["sessions"]
    shown = (await aap.get(session)).json()
    for one in (shown, *([] if aap.base.version == 1 else listed["sessions"])):
        assert one.keys() == fields
        assert list(one["agent"]) == ["name", "tools", "options"]
    for message in await aap.get_history(session):
        assert message.keys() <= {"role", "content", "toolCallId"} | ({"x-portico"} if message["role"] == "assistant" else set())
