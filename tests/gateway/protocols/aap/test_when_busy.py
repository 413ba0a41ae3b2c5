"""A user message during a run: refused, sent to the running agent (`steer`), or queued."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from drivers.contract.driver_info import Capabilities
from drivers.runtime import pipes
from gateway.runs import run as run_module
from gateway.sessions import message_queue
from tests.support.daemon import Daemon, RunningGateway
from tests.support.event_streams import follow_events, read_until, replay_events
from tests.support.requests import (
    agent_processes,
    create_session,
    expect_error,
    get_history,
    session_of,
    user_message,
    wait_until_idle,
)
from tests.support.sse import NumberedEvent, parse_events
from tests.support.stores import content as stored_content
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
MARK = {"write_file": {"path": "began", "text": "x"}}
LONG = [{"text": "begin "}, MARK, {"wait_for_file": "go"}, {"message_end": True}, {"text": "steered: {steered}"}]


def post(client: httpx.AsyncClient, session: str, text: str, mode: str = "none", **fields: Any) -> asyncio.Task[httpx.Response]:
    body = {"messages": [user_message(text)], "stream": mode, **fields}
    return asyncio.create_task(client.post(f"/session/{session}", json=body))


async def read_until_message(events: AsyncIterator[NumberedEvent], text: str) -> list[NumberedEvent]:
    """Read events up to the client's message with this text, and return them."""
    found = await read_until(events, "client_message")
    while found[-1][2] != user_message(text):
        found += await read_until(events, "client_message")
    return found


class Busy(NamedTuple):
    """A session that runs its second turn, the request of that turn, and a function that lets the turn go on."""

    session: str
    turn: asyncio.Task[httpx.Response]
    release: Callable[[], None]


@pytest.fixture
async def busy(portico: RunningGateway, write_scenario: WriteScenario, tmp_path: Path) -> Busy:
    name = write_scenario({"when": "^work$", "steps": LONG}, [{"text": "[{prompt}]"}])
    session = (await create_session(portico.client, options={"scenario": name}))["sessionId"]
    turn = post(portico.client, session, "work", "delta")
    await wait_until((tmp_path / "scenes" / "began").exists)
    return Busy(session, turn, (tmp_path / "scenes" / "go").touch)


async def test_message_during_a_run_is_refused_by_default(portico: RunningGateway, busy: Busy) -> None:
    session, turn, release = busy
    await expect_error(post(portico.client, session, "too soon"), 409)
    await expect_error(post(portico.client, session, "too soon", when_busy="refuse"), 409)
    await expect_error(post(portico.client, session, "too soon", when_busy="perhaps"), 400)
    release()
    await turn
    assert (await get_history(portico.client, session))[2]["content"] == "work"


async def test_steered_message_is_sent_to_the_running_agent(portico: RunningGateway, busy: Busy) -> None:
    session, turn, release = busy
    async with follow_events(portico.client, session) as follower:
        steered = post(portico.client, session, "left!", "delta", when_busy="steer")
        seen = await asyncio.wait_for(read_until_message(follower, "left!"), 60)
    release()
    own = parse_events((await turn).text)
    rest = parse_events((await steered).text)
    assert [event[1] for event in own] == ["turn_start", "text_delta", "text_delta", "turn_stop"]
    assert own[2][2] == {"delta": "steered: left!"}
    assert rest[0][1] == "turn_start"
    assert rest[1:] == own[2:]
    assert ("client_message", user_message("left!")) in [event[1:] for event in seen]
    assert [message["content"] for message in (await get_history(portico.client, session))[2:]] == [
        "work", "begin ", "left!", "steered: left!",
    ]  # fmt: skip
    assert [event for event in await replay_events(portico.client, session) if event in own] == own
    assert (await post(portico.client, session, "next")).json()["messages"][0]["content"] == "[next]"


async def test_steered_json_response_contains_only_the_messages_after_it(portico: RunningGateway, busy: Busy) -> None:
    async with follow_events(portico.client, busy.session) as follower:
        answer = post(portico.client, busy.session, "left!", when_busy="steer")
        await asyncio.wait_for(read_until_message(follower, "left!"), 60)
    busy.release()
    steered = (await answer).json()
    assert [message["content"] for message in steered["messages"]] == ["steered: left!"]
    assert steered["stopReason"] == "end_turn"


@pytest.fixture
def small_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "INPUT_HIGH_WATER", 100_000)


async def test_steering_an_agent_that_does_not_read_its_input_is_refused(
    small_input: None, portico: RunningGateway, busy: Busy
) -> None:
    session, turn, release = busy
    (process,) = agent_processes(os.getpid())
    process.suspend()
    async with follow_events(portico.client, session) as follower:
        first = post(portico.client, session, "x" * 300_000, "delta", when_busy="steer")
        await asyncio.wait_for(read_until_message(follower, "x" * 300_000), 60)
    refused = await post(portico.client, session, "more", when_busy="steer")
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
    assert "has not read more than" in refused.json()["error"]
    process.resume()
    release()
    assert (await turn).status_code == (await first).status_code == 200
    assert "more" not in [message["content"] for message in await get_history(portico.client, session)]


async def test_steering_is_refused_while_long_messages_wait_for_the_end_of_the_agents_own(
    portico: RunningGateway, busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "MAX_STEERED", 100)
    session, turn, release = busy
    async with follow_events(portico.client, session) as follower:
        first = post(portico.client, session, "x" * 101, "delta", when_busy="steer")
        await asyncio.wait_for(read_until_message(follower, "x" * 101), 60)
    assert "wait for the end of the agent's own message" in await expect_error(
        post(portico.client, session, "more", when_busy="steer"), 429
    )
    release()
    assert (await turn).status_code == (await first).status_code == 200


async def test_steered_message_with_an_idempotency_key_is_sent_once(portico: RunningGateway, busy: Busy) -> None:
    session, _, release = busy
    body = {"messages": [user_message("left!")], "when_busy": "steer", "stream": "delta"}
    send = lambda: portico.client.post(f"/session/{session}", json=body, headers={"Idempotency-Key": "k"})  # noqa: E731
    async with follow_events(portico.client, session) as follower:
        both = asyncio.gather(send(), send())
        await asyncio.wait_for(read_until_message(follower, "left!"), 60)
    release()
    first, second = await both
    assert first.text == second.text == (await send()).text
    assert [m["content"] for m in await get_history(portico.client, session)].count("left!") == 1


async def test_steer_and_queue_start_a_turn_when_idle(portico: RunningGateway, busy: Busy) -> None:
    session, turn, release = busy
    release()
    await turn
    for way in ("steer", "queue"):
        assert (await post(portico.client, session, way, when_busy=way)).json()["messages"][0]["content"] == f"[{way}]"


async def test_steering_is_refused_where_the_agent_does_not_support_it(
    portico: RunningGateway, busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _, _ = busy
    found = await session_of(portico.gateway, session)
    monkeypatch.setattr(found.agent, "info", replace(found.agent.info, capabilities=Capabilities()))
    assert "queue" in await expect_error(post(portico.client, session, "x", when_busy="steer"), 400)
    agents = (await portico.client.get("/meta")).json()["agents"]
    assert {agent["name"]: set(agent["capabilities"]["x-portico"]) for agent in agents}["echo"] == {"cancel", "events", "queue"}


async def test_steered_message_with_settings_is_refused(portico: RunningGateway, busy: Busy) -> None:
    session, _, _ = busy
    agent = {"options": {"pace": "fast"}}
    assert "settings" in await expect_error(post(portico.client, session, "x", when_busy="steer", agent=agent), 400)
    assert "blank" in await expect_error(post(portico.client, session, " ", when_busy="steer"), 400)


async def test_queued_message_of_a_turn_that_ends_with_its_client_leaves_the_queue_with_it(
    portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    name = write_scenario({"when": "^work$", "steps": [{"text": "begin "}, {"delay": 600}]}, [{"text": "[{prompt}]"}])
    session = (await create_session(portico.client, options={"scenario": name}))["sessionId"]
    turn = post(portico.client, session, "work")
    found = await session_of(portico.gateway, session)
    await wait_until(lambda: found.busy)
    gone, kept = (
        post(portico.client, session, "gone", when_busy="queue", on_disconnect="cancel"),
        post(portico.client, session, "kept", when_busy="queue"),
    )
    await wait_until(lambda: len(found.queue) == 2)
    gone.cancel()
    await wait_until(lambda: len(found.queue) == 1)
    assert (await portico.client.post(f"/session/{session}/cancel")).json()["cancelled"]
    await turn
    assert (await portico.client.post(f"/session/{session}/queue/continue")).status_code == 200
    assert (await kept).json()["messages"][0]["content"] == "[kept]"
    assert "gone" not in [m["content"] for m in await get_history(portico.client, session)]


async def test_message_over_the_queue_limit_is_refused(
    portico: RunningGateway, busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, turn, release = busy
    monkeypatch.setattr(message_queue, "MAX_QUEUED", 1)
    kept = post(portico.client, session, "kept", when_busy="queue")
    found = await session_of(portico.gateway, session)
    await wait_until(lambda: not found.queue.empty)
    answer = await post(portico.client, session, "too many", when_busy="queue")
    assert (answer.status_code, "retry-after" in answer.headers) == (429, True)
    release()
    await turn
    assert (await kept).status_code == 200


async def test_steered_message_keeps_its_position_after_a_kill(
    daemon: Daemon, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    steps = [
        {"text": "begin"},
        {"message_end": True},
        MARK,
        {"wait_for_file": "go"},
        {"text": "steered: {steered}"},
        {"hang": True},
    ]
    name = write_scenario([{"text": "one"}], steps)
    await daemon.start()
    async with daemon.client() as client:
        session = (await create_session(client, options={"scenario": name}))["sessionId"]
        turn = post(client, session, "work")
        await wait_until((tmp_path / "scenes" / "began").exists)
        async with follow_events(client, session) as follower:
            steered = post(client, session, "left!", when_busy="steer")
            await asyncio.wait_for(read_until_message(follower, "left!"), 60)
            (tmp_path / "scenes" / "go").touch()
            await wait_until(lambda: b"steered: left!" in stored_content(tmp_path / "data"))
            await daemon.kill()
        await asyncio.wait([turn, steered])
    await daemon.start()
    async with daemon.client() as client:
        await wait_until_idle(client, session)
        found = [message["content"] for message in (await get_history(client, session))[2:]]
    assert found == ["work", "begin", "left!", "steered: left!"]
