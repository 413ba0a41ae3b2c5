"""Limits of concurrent turns and tasks, in total and per API key: a request over the limit is rejected without effect."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.runs import admission_and_eviction
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.named_keys import add_key
from tests.support.requests import (
    agent_processes,
    create_session,
    execute,
    expect_error,
    get_session,
    send_turn,
    session_body,
    user_message,
)
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
TOOL = {"name": "get_weather", "description": "The weather.", "inputSchema": {"type": "object"}}
ANSWER = {"role": "tool", "toolCallId": "c", "content": "rain"}


def scenario_options(write_scenario: WriteScenario) -> dict[str, str]:
    waits_for_client = [{"app_tool": {"name": "get_weather", "id": "c"}}, {"hang": True}]
    return {
        "scenario": write_scenario(
            {"when": "hang", "steps": [{"hang": True}]}, {"when": "ask", "steps": waits_for_client}, [{"text": "done"}]
        )
    }


@asynccontextmanager
async def hanging_session(client: httpx.AsyncClient, options: dict[str, str]) -> AsyncIterator[str]:
    """Create a session whose turn hangs, yield its id, and delete it at the end."""
    body = session_body("script", "hang", options=options)
    known = set((await client.get("/sessions")).json()["sessions"])
    turn = asyncio.create_task(client.put("/session", json=body))

    async def running_session() -> str | None:
        for session in set((await client.get("/sessions")).json()["sessions"]) - known:
            if (await get_session(client, session))["state"] == "running":
                return session
        return None

    session = str(await wait_until(running_session))
    try:
        yield session
    finally:
        await client.delete(f"/session/{session}")
        await turn


async def expect_too_many(awaited: Awaitable[httpx.Response], key: str) -> None:
    answer = await awaited
    assert answer.status_code == 429, answer.text
    assert int(answer.headers["retry-after"]) > 0
    assert key in answer.json()["error"]


async def test_turns_over_the_limit_are_rejected_without_effect(tmp_path: Path, write_scenario: WriteScenario) -> None:
    options = scenario_options(write_scenario)
    async with run_gateway(gateway_config(tmp_path, limits={"running_turns": 1})) as portico:
        client = portico.client
        first = (await create_session(client, "script", "one", options=options))["sessionId"]
        waiting = (await create_session(client, "script", "ask", options=options, tools=[TOOL]))["sessionId"]
        before = [await get_session(client, session) for session in (first, waiting)]
        async with hanging_session(client, options) as busy:
            turn = {"messages": [user_message("two")], "agent": {"options": {"pace": "fast"}}}
            await expect_too_many(client.post(f"/session/{first}", json=turn), "limits.running_turns")
            await expect_too_many(client.put("/session", json=session_body(options=options)), "limits.running_turns")
            await expect_too_many(client.post("/v1/execute", json={"driver": "echo", "task": "x"}), "limits.running_turns")
            # The call stays pending and can be answered later.
            await expect_too_many(client.post(f"/session/{waiting}", json={"messages": [ANSWER]}), "limits.running_turns")
            await expect_too_many(
                client.post(f"/session/{waiting}", json={"messages": [user_message("other")]}), "limits.running_turns"
            )
            assert [await get_session(client, session) for session in (first, waiting)] == before
            assert len((await client.get("/sessions")).json()["sessions"]) == 3
            await expect_error(client.post(f"/session/{busy}", json={"messages": [user_message()]}), 409)
        assert (await send_turn(client, first, "two"))["messages"][0]["content"] == "done"
        going_on = asyncio.create_task(client.post(f"/session/{waiting}", json={"messages": [ANSWER]}))
        await wait_until(lambda: _has_state(client, waiting, "running"))
        await client.delete(f"/session/{waiting}")
        assert (await going_on).status_code == 200


async def _has_state(client: httpx.AsyncClient, session: str, state: str) -> bool:
    return bool((await get_session(client, session))["state"] == state)


async def test_turn_limit_holds_for_concurrent_requests(tmp_path: Path, write_scenario: WriteScenario) -> None:
    body = session_body("script", "hang", options=scenario_options(write_scenario), stream="delta")
    async with run_gateway(gateway_config(tmp_path, limits={"running_turns": 2})) as portico:
        requests = [asyncio.create_task(portico.client.put("/session", json=body)) for _ in range(8)]
        done = await wait_until(lambda: done if len(done := [request for request in requests if request.done()]) == 6 else None)
        assert [request.result().status_code for request in done] == [429] * 6
        for session in (await portico.client.get("/sessions")).json()["sessions"]:
            await portico.client.delete(f"/session/{session}")
        await asyncio.gather(*requests)


async def test_turn_limit_per_api_key(tmp_path: Path, write_scenario: WriteScenario) -> None:
    options = scenario_options(write_scenario)
    async with run_gateway(gateway_config(tmp_path, limits={"turns_per_key": 1})) as portico:
        of_a, of_b = [await add_key(portico.gateway, name) for name in "ab"]
        async with (
            _client_with_key(portico, of_a) as a,
            _client_with_key(portico, of_b) as b,
            hanging_session(a, options),
        ):
            await expect_too_many(a.put("/session", json=session_body("echo")), "limits.turns_per_key")
            await expect_too_many(a.post("/v1/execute", json={"driver": "echo", "task": "x"}), "limits.turns_per_key")
            assert (await create_session(b, "echo"))["stopReason"] == "end_turn"
            assert (await create_session(portico.client, "echo"))["stopReason"] == "end_turn"
            assert (await execute(b, "x", "echo"))[-1]["exit_code"] == 0
            async with hanging_session(portico.client, options):
                await expect_too_many(portico.client.put("/session", json=session_body("echo")), "limits.turns_per_key")


def _client_with_key(portico: RunningGateway, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=portico.url, headers={"Authorization": f"Bearer {key}"}, timeout=60, verify=False)


async def test_tasks_occupy_slots_for_live_agents(tmp_path: Path, write_scenario: WriteScenario, monkeypatch: Any) -> None:
    options = scenario_options(write_scenario)
    async with run_gateway(gateway_config(tmp_path, limits={"live_agents": 2})) as portico:
        monkeypatch.setitem(portico.gateway.agents.get("script").settings.options, "scenario", options["scenario"])
        idle = (await create_session(portico.client, "script", "one"))["sessionId"]
        task = {"driver": "script", "task": "hang", "idempotency_key": "first"}
        first = asyncio.create_task(portico.client.post("/v1/execute", json=task))
        async with hanging_session(portico.client, options):
            # The idle session released its slot. Now one task and one turn occupy all slots.
            await expect_too_many(
                portico.client.post("/v1/execute", json={**task, "idempotency_key": "more"}), "limits.live_agents"
            )
            await expect_too_many(
                portico.client.post(f"/session/{idle}", json={"messages": [user_message()]}), "limits.live_agents"
            )
            again = asyncio.create_task(portico.client.post("/v1/execute", json=task))
            await wait_until(lambda: _running_count_is(portico, 2))
            assert not again.done(), "a repeated idempotency key takes no slot"
        assert (await execute(portico.client, "other", idempotency_key="more"))[-1]["exit_code"] == 0
        await portico.gateway.tasks.close("the test is over")
        for request in (first, again):
            assert (await request).status_code == 200


async def _running_count_is(portico: RunningGateway, count: int) -> bool:
    return len(await portico.gateway.store.runs.unfinished()) == count


async def test_slot_is_released_after_a_task_and_after_a_rejected_task(tmp_path: Path) -> None:
    limits = {"live_agents": 1, "running_turns": 1, "turns_per_key": 1}
    missing = {"driver": "codex", "program": str(tmp_path / "no-such-codex")}
    async with run_gateway(gateway_config(tmp_path, limits=limits, agents={"missing": missing})) as portico:
        for _ in range(3):
            assert (await execute(portico.client, "x", "echo"))[-1]["exit_code"] == 0
            await wait_until(lambda: not agent_processes(os.getpid()))
        await expect_error(portico.client.post("/v1/execute", json={"driver": "unknown", "task": "x"}), 400)
        await expect_error(portico.client.post("/v1/execute", json={"driver": "missing", "task": "x"}), 503)
        assert (await create_session(portico.client, "echo"))["stopReason"] == "end_turn"


async def test_an_agent_whose_processes_are_still_searched_for_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_gateway(gateway_config(tmp_path, limits={"live_agents": 1})) as running:
        with monkeypatch.context() as patch:
            patch.setattr(admission_and_eviction, "unfinished_ends", lambda: 1)
            refused = await running.client.put("/session", json=session_body("echo", "one"))
            assert refused.status_code == 429 and "limits.live_agents" in refused.text
        await create_session(running.client, "echo")
