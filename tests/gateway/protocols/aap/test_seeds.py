"""Sessions that are created without a turn: empty, or with a history, which may end in pending calls."""

from __future__ import annotations

from collections.abc import Callable

from gateway.store import Store
from tests.support.aap_client import AapClient
from tests.support.daemon import Daemon, RunningGateway
from tests.support.requests import expect_error, user_message
from tests.support.stores import store_url
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
WEATHER = {"name": "get_weather", "title": "Weather", "description": "The weather.", "inputSchema": {"type": "object"}}
CALL = {"app_tool": {"id": "w", "name": "get_weather", "input": {"location": "Tokyo"}}}
RAIN = {"role": "tool", "toolCallId": "w", "content": "rain"}


async def test_a_session_is_created_without_a_turn(
    portico: RunningGateway, aap: AapClient, write_scenario: WriteScenario
) -> None:
    answer = await aap.post_sessions(agent={"name": "script", "options": {"scenario": write_scenario([{"text": "{turn}"}])}})
    assert answer.status_code == 201
    assert list(answer.json()) == ["sessionId"]
    session = answer.json()["sessionId"]
    assert not await portico.gateway.store.processes.all(), "the agent is not started"
    found = await aap.get_session(session)
    assert (found["state"], found["history"]) == ("idle", {"full": []})
    assert "stopReason" not in found
    assert await aap.stream_turn(session, user_message(), stream="delta") == [
        ("turn_start", {}),
        ("text_delta", {"delta": "1"}),
        ("turn_stop", {"stopReason": "end_turn"}),
    ]


async def test_a_history_is_seeded(aap: AapClient, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"text": "{system}|"}, {"remember": True}])
    seed = [
        {"role": "system", "content": "Answer briefly."},
        user_message("first"),
        {"role": "assistant", "content": [{"type": "tool_use", "toolCallId": "old", "name": "lookup", "input": {}}]},
        {"role": "tool", "toolCallId": "old", "content": "3 hits"},
        {"role": "assistant", "content": "found"},
    ]
    made = await aap.post_sessions(agent={"name": "script", "options": {"scenario": name}}, messages=seed)
    session = made.json()["sessionId"]
    assert (await aap.get_session(session))["history"]["full"] == seed
    answer = await aap.send_turn(session, "second")
    assert answer["messages"] == [{"role": "assistant", "content": 'Answer briefly.|["first"]'}]
    assert await aap.get_history(session) == [*seed, user_message("second"), *answer["messages"]]


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


async def seeded(aap: AapClient, scenario: str) -> str:
    agent = {"name": "script", "options": {"scenario": scenario}, "tools": [{"name": "lookup"}, {"name": "write_note"}]}
    made = await aap.post_sessions(agent=agent, messages=PENDING_CALLS, tools=[WEATHER])
    assert made.status_code == 201, made.text
    return str(made.json()["sessionId"])


async def test_a_seed_that_ends_in_pending_calls_can_be_answered(aap: AapClient, write_scenario: WriteScenario) -> None:
    session = await seeded(aap, write_scenario([*CALL_STEPS, {"text": "Rain: {results.w}."}]))
    before = await aap.get_session(session)
    assert (before["state"], before["stopReason"]) == ("waiting", "tool_use")
    assert "'n' is still pending" in await expect_error(aap.post(session, {"messages": [RAIN]}), 400)
    assert "'x' is not a pending" in await expect_error(
        aap.post(session, {"messages": [RAIN, NO, {**RAIN, "toolCallId": "x"}]}), 400
    )
    assert await aap.get_session(session) == before
    answer = await aap.send_turn(session, RAIN, NO)
    assert answer["stopReason"] == "end_turn"
    denied = {"role": "tool", "toolCallId": "n", "content": "Tool call denied: no"}
    assert answer["messages"] == [denied, {"role": "assistant", "content": "Rain: rain."}]
    assert await aap.get_history(session) == [*PENDING_CALLS, RAIN, *answer["messages"]]


async def test_a_seed_that_ends_in_pending_calls_can_be_cancelled(aap: AapClient, write_scenario: WriteScenario) -> None:
    session = await seeded(aap, write_scenario([{"text": "Well."}]))
    assert (await aap.send_turn(session, "Never mind"))["messages"] == [{"role": "assistant", "content": "Well."}]
    assert [m["content"] for m in (await aap.get_history(session))[3:5]] == ["Tool call cancelled"] * 2


async def test_call_followed_by_a_user_message_is_not_pending(aap: AapClient, write_scenario: WriteScenario) -> None:
    agent = {"name": "script", "options": {"scenario": write_scenario([{"text": "Well."}])}}
    made = await aap.post_sessions(agent=agent, messages=[*PENDING_CALLS, user_message("never mind")])
    assert (await aap.get_session(made.json()["sessionId"]))["state"] == "idle"


async def test_an_invalid_history_is_refused(aap: AapClient) -> None:
    agent = {"name": "script"}
    for body, named in (
        ({}, "agent: "),
        ({"agent": {"name": "no-such-agent"}}, "'no-such-agent'"),
        ({"agent": agent, "messages": [{"role": "tool_permission", "toolCallId": "x", "granted": True}]}, "messages.0: role"),
        ({"agent": agent, "messages": [user_message([{"type": "image", "url": "file:///etc/passwd"}])]}, "https://"),
        ({"agent": {**agent, "options": {"pace": "slow"}}}, "'pace'"),
        ({"agent": {**agent, "tools": [{"name": "hammer"}]}}, "'hammer'"),
    ):
        assert named in await expect_error(aap.http.post("/aap/v3/sessions", json=body), 400)
    assert await aap.list_sessions() == {"sessions": []}


async def test_seeded_session_is_kept_after_the_daemon_is_killed(daemon: Daemon, write_scenario: WriteScenario) -> None:
    name = write_scenario(
        [*CALL_STEPS, {"text": "Rain: {results.w}."}, {"message_end": True}, {"text": "And"}, {"hang": True}], name="hang.json"
    )
    await daemon.start()
    async with daemon.client() as client:
        session = await seeded(AapClient(client), name)
    await daemon.kill()
    await daemon.start()
    async with daemon.client() as client:
        aap = AapClient(client)
        assert (await aap.get_session(session))["state"] == "waiting"
        async with aap.stream(session, RAIN, NO) as answer:
            async for line in answer.aiter_lines():
                if '"And"' in line:
                    break
        await wait_until(lambda: _stored(daemon, session))
    await daemon.kill()
    await daemon.start()
    async with daemon.client() as client:
        found = await AapClient(client).get_session(session)
    contents = [message["content"] for message in found["history"]["full"][len(PENDING_CALLS) :]]
    assert contents == ["rain", "Tool call denied: no", "Rain: rain.", "And"]
    assert (found["state"], found["stopReason"]) == ("idle", "error")


async def _stored(daemon: Daemon, session: str) -> bool:
    store = await Store.open(store_url(daemon.home / "data"))
    try:
        return any(b'"And"' in body for _, body in await store.events.read(session, 0))
    finally:
        await store.close()
