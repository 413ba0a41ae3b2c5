"""Live agents between turns: they are kept, ended when idle or evicted, and restored with their context."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from httpx_sse import ServerSentEvent

from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import (
    create_session,
    expect_error,
    get_history,
    get_session,
    send_turn,
    session_body,
    wait_until_idle,
)
from tests.support.sse import arriving
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
REMEMBER = [{"remember": True}]
GRACE = 1.0
"""`limits.grace` of gateways in tests."""


async def live_agents(portico: RunningGateway) -> list[tuple[str, int, float]]:
    return await portico.gateway.store.processes.all()


def scenario(write_scenario: WriteScenario) -> dict[str, str]:
    """Return the options of a scenario that hangs on the prompt `hang` and otherwise outputs the earlier prompts."""
    return {"scenario": write_scenario({"when": "hang", "steps": [{"text": "x"}, {"hang": True}]}, REMEMBER)}


async def test_idle_agent_is_ended_and_restored_with_its_context(tmp_path: Path, write_scenario: WriteScenario) -> None:
    async with run_gateway(gateway_config(tmp_path, limits={"sleep_after": 0.1})) as portico:
        answer = await create_session(portico.client, "script", "one", options=scenario(write_scenario))
        session = answer["sessionId"]
        await wait_until(lambda: _no_live_agents(portico))
        assert (await get_session(portico.client, session))["state"] == "idle"
        assert (await send_turn(portico.client, session, "two"))["messages"][0]["content"] == '["one"]'
        await wait_until(lambda: _no_live_agents(portico))
        assert json.loads((await send_turn(portico.client, session, "three"))["messages"][0]["content"]) == ["one", "two"]


async def _no_live_agents(portico: RunningGateway) -> bool:
    return not await live_agents(portico)


async def test_agent_with_a_pending_call_is_not_ended_when_idle(tmp_path: Path, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"app_tool": {"id": "c", "name": "ask"}}, {"text": "{last_result}"}])
    tool = {"name": "ask", "description": "Asks.", "inputSchema": {}}
    async with run_gateway(gateway_config(tmp_path, limits={"sleep_after": 0.05, "total": 5.0, "idle": 5.0})) as portico:
        session = (await create_session(portico.client, options={"scenario": name}, tools=[tool]))["sessionId"]
        other = (await create_session(portico.client, options=scenario(write_scenario)))["sessionId"]
        await wait_until(lambda: _one_live_agent(portico))
        answer = await send_turn(portico.client, session, {"role": "tool", "toolCallId": "c", "content": "yes"})
        assert answer["messages"][0]["content"] == "yes"
        assert (await get_session(portico.client, other))["state"] == "idle"


async def _one_live_agent(portico: RunningGateway) -> bool:
    return len(await live_agents(portico)) == 1


async def test_session_that_was_idle_for_the_longest_is_evicted(tmp_path: Path, write_scenario: WriteScenario) -> None:
    options = scenario(write_scenario)
    async with run_gateway(gateway_config(tmp_path, limits={"live_agents": 2})) as portico:
        first, second = [(await create_session(portico.client, "script", text, options=options))["sessionId"] for text in "ab"]
        before = await live_agents(portico)
        await send_turn(portico.client, first, "c")
        (of_first, of_second) = await live_agents(portico)
        # It was kept between its turns.
        assert (of_first, of_second) == tuple(before)
        third = (await create_session(portico.client, options=options))["sessionId"]
        await wait_until(lambda: _agent_ended(portico, of_second))
        assert of_first in await live_agents(portico)
        assert len(await live_agents(portico)) == 2
        assert (await send_turn(portico.client, second, "d"))["messages"][0]["content"] == '["b"]'
        assert (await send_turn(portico.client, first, "e"))["messages"][0]["content"] == '["a", "c"]'
        assert (await get_session(portico.client, third))["state"] == "idle"


async def _agent_ended(portico: RunningGateway, agent: tuple[str, int, float]) -> bool:
    return agent not in await live_agents(portico)


async def test_slot_is_released_after_a_failed_start(tmp_path: Path, write_scenario: WriteScenario) -> None:
    async with run_gateway(gateway_config(tmp_path, limits={"live_agents": 1})) as portico:
        for _ in range(3):
            await expect_error(portico.client.put("/session", json=session_body(options={"scenario": "missing.json"})), 503)
        assert (await create_session(portico.client, options=scenario(write_scenario)))["stopReason"] == "end_turn"


async def test_agent_that_ended_is_started_again(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    name = write_scenario({"when": "one", "steps": [{"text": "a"}, {"exit": 0}]}, REMEMBER)
    answer = await create_session(portico.client, "script", "one", options={"scenario": name})
    assert answer["stopReason"] == "error", "it ended in the middle of its turn"
    assert (await wait_until_idle(portico.client, answer["sessionId"]))["stopReason"] == "error"
    assert (await send_turn(portico.client, answer["sessionId"], "two"))["messages"][0]["content"] == '["one"]'


@pytest.mark.parametrize(
    ("limits", "named"),
    [({"idle": 90.0}, "limits.idle"), ({"total": 90.0, "idle": 0}, "limits.total")],
)
async def test_turn_over_a_time_limit_ends_with_the_name_of_the_limit(
    tmp_path: Path, clock: ManualClock, write_scenario: WriteScenario, limits: dict[str, float], named: str
) -> None:
    name = write_scenario({"when": "long", "steps": [{"text": "x"}, {"hang": True}]}, REMEMBER)
    async with run_gateway(gateway_config(tmp_path, limits=limits), clock) as portico:
        body = session_body("script", "long", options={"scenario": name}, stream="delta")
        async with portico.client.stream("PUT", "/session", json=body) as response:
            events = arriving(response)
            session = (await anext(events)).json()["sessionId"]
            while (await anext(events)).event != "text_delta":
                pass
            await clock.expire(90.0)
            *_, stop = await clock.expire_until(_all(events), GRACE)
        assert (stop.event, stop.json()["stopReason"]) == ("turn_stop", "error")
        assert named in stop.json()["x-portico"]["error"]
        assert (await get_history(portico.client, session))[1]["content"] == "x"
        assert (await send_turn(portico.client, session, "on"))["messages"][0]["content"] == '["long"]'


async def _all(events: AsyncIterator[ServerSentEvent]) -> list[ServerSentEvent]:
    return [event async for event in events]


async def test_agent_that_is_not_ready_in_time_is_ended(tmp_path: Path) -> None:
    slow = {"start": [{"delay": 60}], "turns": [{"steps": []}]}
    async with run_gateway(gateway_config(tmp_path, limits={"start": 0.3})) as portico:
        (tmp_path / "scenes" / "slow.json").write_text(json.dumps(slow))
        text = await expect_error(portico.client.put("/session", json=session_body(options={"scenario": "slow.json"})), 503)
        assert "limits.start" in text
        assert not await live_agents(portico)
