"""`GET …/events`: the events of a session after any event id, over several turns, for several readers, and after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import write_config
from tests.support.daemon import Daemon, RunningGateway, gateway_config, run_gateway
from tests.support.event_streams import follow_events, read_until, replay_events
from tests.support.manual_clock import ManualClock
from tests.support.requests import (
    create_session,
    expect_error,
    get_session,
    send_turn,
    session_body,
    session_of,
    user_message,
    wait_until_idle,
)
from tests.support.sse import NumberedEvent, parse_events
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
LONG = [
    {"thinking": {"text": "a thought", "chunk": 3}},
    {"text": {"text": "a first message", "chunk": 4}},
    {"tool_call": {"name": "Read", "input": {"n": 1}, "result": "found"}},
    {"text": {"text": "a second one", "chunk": 5}},
    {"message_end": True},
    {"text": "and a third"},
]


async def post(portico: RunningGateway, session: str, *messages: Any, **fields: Any) -> list[NumberedEvent]:
    """Submits a streamed turn; returns its events with their ids."""
    body = {"messages": list(messages), "stream": "delta", **fields}
    answer = await portico.client.post(f"/session/{session}", json=body)
    assert answer.status_code == 200, answer.text
    return parse_events(answer.text)


async def test_frames_have_ids(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    # Every frame of a turn has an id.
    body = session_body(options={"scenario": write_scenario(LONG)}, stream="delta")
    first = parse_events((await portico.client.put("/session", json=body)).text)
    assert [event[0] for event in first[:3]] == ["0", "1", "3"], "event 2 is internal"
    session = first[0][2]["sessionId"]
    second = await post(portico, session, user_message())
    numbers = [float(event[0]) for event in first + second]
    assert numbers == sorted(set(numbers))
    # Frames of one event have separate ids.
    session = (
        await create_session(portico.client, options={"scenario": write_scenario([{"text": "a"}, {"tool_call": {"name": "T"}}])})
    )["sessionId"]
    whole = await replay_events(portico.client, session, stream="message")
    assert [event[0] for event in whole if event[1] in ("text", "tool_call")] == ["4.1", "4"]
    # Invalid event ids are refused.
    session = (await create_session(portico.client, "echo"))["sessionId"]
    for wrong in ("x", "-1", "1.", ".1", "1.1.1", "٣", "9" * 30, "99999"):
        text = await expect_error(portico.client.get(f"/session/{session}/events", params={"after": wrong}), 400)
        assert wrong in text
    await expect_error(portico.client.get("/session/none/events"), 404)
    assert (await portico.client.get(f"/session/{session}/events", headers={"Authorization": "Bearer no"})).status_code == 401


async def test_two_followers_get_the_same_turns_and_the_client_messages(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    session = (await create_session(portico.client, options={"scenario": write_scenario(LONG)}))["sessionId"]
    async with follow_events(portico.client, session) as left, follow_events(portico.client, session) as right:
        own = await post(portico, session, user_message("two"))
        seen = await asyncio.wait_for(read_until(left, "turn_stop"), 60)
        assert seen == await asyncio.wait_for(read_until(right, "turn_stop"), 60)
        message, *rest = seen
        assert message[1:] == ("client_message", user_message("two"))
        assert rest == own
        again = await post(portico, session, user_message("three"))
        assert (await asyncio.wait_for(read_until(left, "turn_stop"), 60))[1:] == again


async def test_following_from_the_end_does_not_read_the_last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_gateway(gateway_config(tmp_path)) as portico:
        sessions = [(await create_session(portico.client, "echo"))["sessionId"] for _ in range(2)]
        last = (await replay_events(portico.client, sessions[1]))[-1][0]
    async with run_gateway(gateway_config(tmp_path)) as portico:
        reads, read = list[int](), portico.gateway.store.events.read

        async def recorded(log_id: str, after: int, rows: int = 16) -> list[tuple[int, bytes]]:
            reads.append(after)
            return await read(log_id, after, rows)

        monkeypatch.setattr(portico.gateway.store.events, "read", recorded)
        for session, query in zip(sessions, ({}, {"after": last}), strict=True):
            async with follow_events(portico.client, session, **query) as following:
                own = await post(portico, session, user_message("two"))
                assert (await asyncio.wait_for(read_until(following, "turn_stop"), 60))[1:] == own, query
        assert reads == []


async def test_tool_results_and_permissions_are_sent_to_other_followers(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    steps = [
        {"parallel": [{"app_tool": {"name": "look", "id": "a"}}, {"tool_call": {"name": "shell", "id": "b", "ask": True}}]},
        {"text": "x"},
    ]
    fields = {"tools": [{"name": "look", "description": "", "inputSchema": {}}], "grants": [{"name": "shell"}]}
    made = await create_session(portico.client, options={"scenario": write_scenario(steps)}, **fields)
    assert made["stopReason"] == "tool_use"
    session = made["sessionId"]
    async with follow_events(portico.client, session) as follower:
        result = {"role": "tool", "toolCallId": "a", "content": "seen"}
        grant = {"role": "tool_permission", "toolCallId": "b", "granted": True, "reason": None}
        await send_turn(portico.client, session, result, grant)
        seen = await asyncio.wait_for(read_until(follower, "turn_stop"), 60)
    assert [event[1:] for event in seen[:3]] == [("client_message", result), ("client_message", grant), ("turn_start", {})]
    assert ("tool_result", {"toolCallId": "b", "content": "done"}) in [event[1:] for event in seen]


async def test_follower_without_an_id_gets_the_running_turn_from_its_start(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    name = write_scenario([{"text": "one"}], [{"text": "two"}, {"hang": True}])
    session = (await create_session(portico.client, options={"scenario": name}))["sessionId"]
    turn = asyncio.create_task(post(portico, session, user_message("go on")))
    await wait_until(lambda: get_session(portico.client, session))
    async with follow_events(portico.client, session, after="0") as follower:
        await asyncio.wait_for(read_until(follower, "turn_stop"), 60)
        await asyncio.wait_for(read_until(follower, "text_delta"), 60)
    async with follow_events(portico.client, session) as follower:
        seen = await asyncio.wait_for(read_until(follower, "text_delta"), 60)
        assert [event[1:] for event in seen] == [
            ("client_message", user_message("go on")),
            ("turn_start", {}),
            ("text_delta", {"delta": "two"}),
        ]
        await portico.client.post(f"/session/{session}/cancel")
        assert (await asyncio.wait_for(read_until(follower, "turn_stop"), 60))[-1] == (await turn)[-1]


async def test_replay_from_every_id_returns_the_remaining_events(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    for mode in ("delta", "message"):
        session = (await create_session(portico.client, options={"scenario": write_scenario(LONG)}))["sessionId"]
        await send_turn(portico.client, session, "two")
        whole = await replay_events(portico.client, session, stream=mode)
        assert [event[1] for event in whole].count("turn_stop") == 2, mode
        for index, event in enumerate(whole):
            assert await replay_events(portico.client, session, event[0], stream=mode) == whole[index + 1 :], mode
            header = {"Last-Event-ID": event[0]}
            query = {"stream": mode, "until": "turn_stop", "after": "0"}
            answer = await portico.client.get(f"/session/{session}/events", params=query, headers=header)
            stop = next((n for n, e in enumerate(whole) if n > index and e[1] == "turn_stop"), len(whole))
            assert parse_events(answer.text) == whole[index + 1 : stop + 1], mode


async def test_idle_event_stream_sends_keep_alives_and_ends_with_the_session(tmp_path: Any, clock: ManualClock) -> None:
    for path in ("/session/{}/events", "/aap/v3/sessions/{}/log"):
        async with run_gateway(gateway_config(tmp_path, server={"keep_alive": 0.7}), clock) as portico:
            session = (await create_session(portico.client, "echo"))["sessionId"]
            asked = {"Accept": "text/event-stream"}
            async with portico.client.stream("GET", path.format(session), headers=asked) as answer:
                assert answer.headers["x-accel-buffering"] == "no", path
                chunks = answer.aiter_text()
                for _ in range(2):
                    await clock.expire(0.7)
                    assert await asyncio.wait_for(anext(chunks), 10) == ": keep-alive\n\n", path
                assert (await portico.client.delete(f"/session/{session}")).status_code == 204, path
                assert ": keep-alive" not in "".join([chunk async for chunk in chunks]), path


async def test_cancelled_calls_are_sent_to_followers(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    fields = {"tools": [{"name": "look", "description": "", "inputSchema": {}}]}
    name = write_scenario([{"app_tool": {"name": "look", "id": "a"}}], [{"text": "well"}])
    session = (await create_session(portico.client, options={"scenario": name}, **fields))["sessionId"]
    async with follow_events(portico.client, session) as follower:
        await send_turn(portico.client, session, "never mind")
        seen = await asyncio.wait_for(read_until(follower, "turn_stop"), 60)
    assert [event[1] for event in seen] == ["tool_calls_cancelled", "client_message", "turn_start", "text_delta", "turn_stop"]
    assert seen[0][2] == {"toolCallIds": ["a"]}


async def test_reconnecting_reader_gets_the_same_events_as_a_connected_one(tmp_path: Any, write_scenario: WriteScenario) -> None:
    """A reader that disconnects after any number of bytes resumes after the last complete frame."""
    slow = [step for part in LONG for step in (part, {"delay": 0.002})] * 3
    async with run_gateway(gateway_config(tmp_path)) as portico:
        session = (await create_session(portico.client, options={"scenario": write_scenario(slow)}))["sessionId"]

        async def read(sizes: list[int], mode: str) -> list[NumberedEvent]:
            after, seen = str((await replay_events(portico.client, session))[-1][0]), list[NumberedEvent]()
            turn = asyncio.create_task(post(portico, session, user_message("go")))
            held = await session_of(portico.gateway, session)
            await wait_until(lambda: held.busy)
            while not (seen and seen[-1][1] == "turn_stop"):
                size = sizes.pop() if sizes else 10**9
                header, text = {"Last-Event-ID": seen[-1][0] if seen else after}, ""
                query = {"stream": mode, "until": "turn_stop"}
                async with portico.client.stream("GET", f"/session/{session}/events", params=query, headers=header) as answer:
                    async for chunk in answer.aiter_text():
                        text += chunk[: size - len(text)]
                        if len(text) >= size:
                            break
                seen += parse_events(text[: text.rfind("\n\n") + 2])
            await turn
            assert seen == [e for e in await replay_events(portico.client, session, after, stream=mode)]
            return seen

        @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(st.integers(1, 400), max_size=12))
        def collect(sizes: list[int]) -> None:
            examples.append(sizes)

        examples: list[list[int]] = []
        collect()
        for number, sizes in enumerate(examples):
            seen = await read(list(sizes), ("delta", "message")[number % 2])
            assert [event[1] for event in seen].count("turn_stop") == 1


async def test_kill_during_a_turn_leaves_one_gap_and_one_turn_stop(
    daemon: Daemon, write_scenario: WriteScenario, tmp_path: Any
) -> None:
    name = write_scenario(
        [{"text": "one"}], [{"text": "begin"}, {"events": 300}, {"hang": {"ignore_term": True}}], [{"text": "on"}]
    )
    # Whether any text is stored when the daemon is killed is a matter of milliseconds.
    write_config(tmp_path, gateway_config(tmp_path, server={"errors_as_text": False}))
    await daemon.start()
    seen = ""
    async with daemon.client() as client:
        session = (await create_session(client, options={"scenario": name}))["sessionId"]
        body = {"messages": [user_message("two")], "stream": "delta"}
        async with client.stream("POST", f"/session/{session}", json=body) as answer:
            async for chunk in answer.aiter_text():
                seen += chunk
                if "event 150 " in seen:
                    await daemon.kill()
                    break
    own = parse_events(seen[: seen.rfind("\n\n") + 2])
    await daemon.start()
    async with daemon.client() as client:
        whole = await replay_events(client, session)
        turn = [e for e in whole if float(e[0]) >= float(own[0][0])]
        names = [event[1] for event in turn]
        assert (names.count("gap"), names[-2:]) == (1, ["gap", "turn_stop"])
        stored = [event for event in turn[:-2] if event[1] != "client_message"]
        common = min(len(stored), len(own))
        assert stored[:common] == own[:common]
        for event in (own[-1], own[len(own) // 2], turn[-2]):
            rest = await replay_events(client, session, event[0])
            gaps = [e for e in rest if e[1] == "gap"]
            later = [e for e in stored if float(e[0]) > float(event[0])]
            assert [e for e in rest if e[1] not in ("gap", "turn_stop")] == later
            assert rest[-1] == turn[-1]
            assert rest[-1][2]["stopReason"] == "error"
            for gap in gaps:
                assert gap[2]["from"] == max(int(event[0]), int(stored[-1][0])) + 1
                assert gap[2]["to"] == int(turn[-1][0]) - 2
        assert (await send_turn(client, session, "three"))["stopReason"] == "end_turn"
        assert (await wait_until_idle(client, session))["state"] == "idle"
        assert [e[1] for e in await replay_events(client, session, turn[-1][0])] == [
            "client_message", "turn_start", "text_delta", "turn_stop",
        ]  # fmt: skip
