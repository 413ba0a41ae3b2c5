"""`/v1/live-agents`: which agents run, what their processes take, and ending one."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import httpx
import psutil

from gateway.protocols.aap.schema import iso_time
from tests.support.daemon import RunningGateway, http_client
from tests.support.named_keys import add_key
from tests.support.requests import create_session, expect_error, get_session, send_turn, user_message
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
NOTE = {"tool_call": {"id": "note", "name": "write_note", "input": {"path": "a.txt", "text": "x"}}}
GRANTS = [{"name": "write_note"}]
YES = {"role": "tool_permission", "toolCallId": "note", "granted": True}


async def live(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    answer = await client.get("/v1/live-agents")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["agents"])


async def test_idle_agent_with_its_processes(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    scenario = write_scenario([{"spawn": {"seconds": 60, "orphan": True, "new_session": True}}, {"text": "ready"}])
    assert await live(portico.client) == []
    session = (await create_session(portico.client, options={"scenario": scenario}))["sessionId"]
    (agent,) = await live(portico.client)
    assert (agent["sessionId"], agent["taskId"], agent["agent"], agent["key"]) == (session, None, "script", None)
    assert (agent["state"], agent["processes"]) == ("idle", 2)
    process = psutil.Process(agent["pid"])
    assert process.ppid() == os.getpid()
    assert agent["memoryBytes"] > process.memory_info().rss * 0.9
    assert 0 <= agent["cpuPercent"] < 1000
    assert agent["startedAt"] < agent["idleSince"]


async def test_agent_that_is_ended_while_it_is_idle(portico: RunningGateway) -> None:
    session = (await create_session(portico.client, "echo"))["sessionId"]
    (agent,) = await live(portico.client)
    assert (await portico.client.delete(f"/v1/live-agents/{session}")).status_code == 204
    assert not psutil.pid_exists(agent["pid"]) and await live(portico.client) == []
    assert "no live agent" in await expect_error(portico.client.delete(f"/v1/live-agents/{session}"), 404)
    # The next turn starts a fresh one.
    assert (await send_turn(portico.client, session, user_message("again")))["stopReason"] == "end_turn"
    # Unknown agent is not found.
    for id_ in ("sess_00000000000000000000000000000000", "exec_0", "%2e%2e"):
        await expect_error(portico.client.delete(f"/v1/live-agents/{id_}"), 404)


async def test_run_at_work_ends_with_an_error(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    options = {"scenario": write_scenario([{"text": "begun"}, {"hang": {"ignore_term": True}}], [{"text": "next"}])}
    created = await portico.client.post("/aap/v3/sessions", json={"agent": {"name": "script", "options": options}})
    session = created.json()["sessionId"]
    turn = asyncio.create_task(send_turn(portico.client, session, "go"))

    async def running() -> dict[str, Any] | None:
        agents = await live(portico.client)
        history = portico.gateway.sessions.held[0].log.last if agents else 0
        return agents[0] if agents and agents[0]["state"] == "running" and history > 1 else None

    agent = await wait_until(running)
    assert agent["idleSince"] is None
    assert (await portico.client.delete(f"/v1/live-agents/{session}")).status_code == 204
    assert not psutil.pid_exists(agent["pid"])
    answer = await turn
    assert answer["stopReason"] == "error" and "ended on request" in answer["x-portico"]["error"]
    assert await live(portico.client) == []
    assert (await get_session(portico.client, session))["state"] == "idle"
    assert (await send_turn(portico.client, session, "again"))["messages"][-1]["content"] == "next"


async def test_run_that_waits_goes_on_waiting(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    scenario = write_scenario([{"delay": {"seconds": 0.3}}, NOTE, {"text": "end"}])
    before = iso_time(time.time() + 0.3)
    session = (await create_session(portico.client, options={"scenario": scenario}, grants=GRANTS))["sessionId"]
    (agent,) = await live(portico.client)
    # Since it waits, not since its turn began.
    assert agent["state"] == "waiting" and agent["idleSince"] >= before
    assert (await portico.client.delete(f"/v1/live-agents/{session}")).status_code == 204
    assert not psutil.pid_exists(agent["pid"])
    assert (await get_session(portico.client, session))["state"] == "waiting"
    assert (await send_turn(portico.client, session, YES))["stopReason"] == "end_turn"


async def test_task_is_listed_and_ended(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    agent = portico.gateway.agents.get("script")
    agent.settings = agent.settings.model_copy(update={"options": {"scenario": write_scenario([{"hang": True}])}})
    body = {"driver": "script", "task": "go"}
    task = asyncio.create_task(portico.client.post("/v1/execute", json=body))

    async def running() -> dict[str, Any] | None:
        return next(iter(await live(portico.client)), None)

    found = await wait_until(running)
    assert (found["sessionId"], found["state"]) == (None, "running")
    assert (await portico.client.delete(f"/v1/live-agents/{found['taskId']}")).status_code == 204
    answer = await task
    assert "ended on request" in answer.text and '"kind":"session_end"' in answer.text
    await wait_until(lambda: not portico.gateway.tasks.running)
    assert await live(portico.client) == []


async def test_named_key_sees_and_ends_its_own_agents_only(portico: RunningGateway) -> None:
    own = (await create_session(portico.client, "echo"))["sessionId"]
    async with http_client(portico.url) as phone, http_client(portico.url) as other:
        phone.headers["authorization"] = f"Bearer {await add_key(portico.gateway, 'phone')}"
        other.headers["authorization"] = f"Bearer {await add_key(portico.gateway, 'other')}"
        session = (await create_session(phone, "echo"))["sessionId"]
        assert [agent["sessionId"] for agent in await live(phone)] == [session]
        assert await live(other) == []
        for client, id_ in ((other, session), (phone, own)):
            assert "there is no session" in await expect_error(client.delete(f"/v1/live-agents/{id_}"), 404)
        listed = {agent["sessionId"]: agent["key"] for agent in await live(portico.client)}
        assert listed == {own: None, session: "phone"}
        assert (await phone.delete(f"/v1/live-agents/{session}")).status_code == 204
    assert [agent["sessionId"] for agent in await live(portico.client)] == [own]
