"""Approval timeout (`limits.answer`): calls without a reply are denied, also after the agent or the gateway has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.runs.pending_calls import PendingCalls
from gateway.security.authentication import ADMINISTRATOR
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import create_session, expect_error, get_history, get_session, send_turn, wait_until_idle
from tests.support.stores import sql
from tests.support.waiting import wait_until

Json = dict[str, Any]
WriteScenario = Callable[..., str]

WEATHER = {"name": "weather", "description": "The weather.", "inputSchema": {"type": "object"}}
NOTE = {"path": "note.txt", "text": "Tokyo"}
CALLS = [
    {"app_tool": {"id": "sky", "name": "weather"}},
    {"tool_call": {"id": "note", "name": "write_note", "input": NOTE, "write_file": NOTE}},
]
STEPS = [{"parallel": CALLS}, {"text": "{results.sky} / {results.note}"}]
LATE = [
    {"role": "tool", "toolCallId": "sky", "content": "sun"},
    {"role": "tool_permission", "toolCallId": "note", "granted": True},
]


async def create_waiting_session(client: Any, write_scenario: WriteScenario) -> str:
    """Create a session that waits for a result (`sky`) and a permission (`note`), and return its id."""
    options = {"scenario": write_scenario({"when": "And?", "steps": [{"text": "here"}]}, STEPS)}
    answer = await create_session(client, "script", "Go", options=options, tools=[WEATHER], grants=[{"name": "write_note"}])
    assert answer["stopReason"] == "tool_use"
    return str(answer["sessionId"])


def denied_results(seconds: str) -> dict[str, str]:
    texts = f"no result from the application within {seconds} s", f"no answer within {seconds} s"
    return {"sky": f"Tool call denied: {texts[0]}", "note": f"Tool call denied: {texts[1]}"}


def results(messages: list[Json]) -> dict[str, Any]:
    return {message["toolCallId"]: message["content"] for message in messages if message["role"] == "tool"}


async def reject_late_replies(client: Any, session: str) -> str:
    return await expect_error(client.post(f"/session/{session}", json={"messages": LATE}), 400)


def set_waiting_since(tmp_path: Path, moment: float) -> None:
    statement = "UPDATE runs SET waiting_since = :moment WHERE state = 'waiting' RETURNING id"
    assert len(sql(tmp_path / "data", statement, {"moment": moment})) == 1


async def test_calls_are_denied_after_the_timeout_and_the_agent_continues(
    tmp_path: Path, clock: ManualClock, write_scenario: WriteScenario
) -> None:
    async with run_gateway(gateway_config(tmp_path, limits={"answer": 30.0}), clock) as portico:
        session = await create_waiting_session(portico.client, write_scenario)
        await clock.expire(30.0)
        assert (await wait_until_idle(portico.client, session))["stopReason"] == "end_turn"
        messages = await get_history(portico.client, session)
        assert results(messages) == denied_results("30")
        assert messages[-1]["content"] == " / ".join(denied_results("30").values())
        assert "'note', 'sky' is answered already" in await reject_late_replies(portico.client, session)
        assert (await send_turn(portico.client, session, "And?"))["messages"][-1]["content"] == "here"
        found = {(r.call_id, r.outcome, r.by) for r in await portico.gateway.store.audit.newest(10, session)}
    assert found == {(c, *what) for c in ("sky", "note") for what in (("asked", "default"), ("timed_out", "limits.answer"))}
    assert not (tmp_path / "scenes" / "note.txt").exists()


async def test_timeout_of_a_suspended_run_starts_no_agent(
    tmp_path: Path, clock: ManualClock, write_scenario: WriteScenario
) -> None:
    async with run_gateway(gateway_config(tmp_path, limits={"answer": 30.0}), clock) as portico:
        session = await create_waiting_session(portico.client, write_scenario)
        found = await portico.gateway.sessions.get(ADMINISTRATOR, session)
        assert found.live is not None and found.run is not None
        psutil.Process(found.live.pid).kill()  # type: ignore[attr-defined]
        await found.run.wait()
        await clock.expire(30.0)
        await wait_until_idle(portico.client, session)
        assert await portico.gateway.store.processes.all() == []
        messages = await get_history(portico.client, session)
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
        assert results(messages) == denied_results("30")
        assert "answered already" in await reject_late_replies(portico.client, session)
        assert (await send_turn(portico.client, session, "And?"))["messages"][-1]["content"] == "here"


async def test_timeout_counts_while_the_gateway_is_down(tmp_path: Path, write_scenario: WriteScenario) -> None:
    config = gateway_config(tmp_path, limits={"answer": 900.0})
    async with run_gateway(config) as portico:
        session = await create_waiting_session(portico.client, write_scenario)
    set_waiting_since(tmp_path, time.time() - 901)
    async with run_gateway(config) as portico:
        assert "answered already" in await reject_late_replies(portico.client, session)
        found = await get_session(portico.client, session)
        assert (found["state"], results(found["history"]["full"])) == ("idle", denied_results("900"))
        assert await portico.gateway.store.processes.all() == []
        assert (await send_turn(portico.client, session, "And?"))["messages"][-1]["content"] == "here"


async def test_remaining_time_counts_after_a_restart(tmp_path: Path, clock: ManualClock, write_scenario: WriteScenario) -> None:
    config = gateway_config(tmp_path, limits={"answer": 900.0})
    async with run_gateway(config) as portico:
        session = await create_waiting_session(portico.client, write_scenario)
    set_waiting_since(tmp_path, clock.time() - 897)
    async with run_gateway(config, clock) as portico:
        assert (await get_session(portico.client, session))["state"] == "waiting"
        await clock.expire(3.0)
        assert results((await wait_until_idle(portico.client, session))["history"]["full"]) == denied_results("900")


async def test_waiting_session_is_evicted_and_keeps_its_pending_calls(tmp_path: Path, write_scenario: WriteScenario) -> None:
    async with run_gateway(gateway_config(tmp_path, limits={"live_agents": 1})) as portico:
        session = await create_waiting_session(portico.client, write_scenario)
        [(marker, *_)] = await portico.gateway.store.processes.all()
        assert (
            await create_session(portico.client, options={"scenario": write_scenario([{"text": "other"}], name="other.json")})
        )["messages"]
        await wait_until(lambda: _agent_ended(portico, marker))
        assert (await get_session(portico.client, session))["state"] == "waiting"
        answer = await send_turn(portico.client, session, *LATE)
        assert answer["messages"][-1]["content"] == "sun / done"
    assert (tmp_path / "scenes" / "note.txt").read_text() == "Tokyo"


async def _agent_ended(portico: RunningGateway, marker: str) -> bool:
    return all(found != marker for found, *_ in await portico.gateway.store.processes.all())


async def test_concurrent_requests_load_a_session_once(
    tmp_path: Path, write_scenario: WriteScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = gateway_config(tmp_path, limits={"answer": 900.0})
    async with run_gateway(config) as portico:
        session = await create_waiting_session(portico.client, write_scenario)
    watched: list[Any] = []
    monkeypatch.setattr(PendingCalls, "open", lambda self, calls, since: watched.append(self))
    async with run_gateway(config) as portico:
        sessions = portico.gateway.sessions
        found = await asyncio.gather(*(sessions.get(ADMINISTRATOR, session) for _ in range(5)))
        assert {id(one) for one in found} == {id(found[0])}
        assert found[0].run is not None and watched == [found[0].run.pending], (
            "a second timer would deny calls that are answered already"
        )


async def test_timeout_applies_to_pending_calls_of_a_given_history(tmp_path: Path, clock: ManualClock) -> None:
    call = {"type": "tool_use", "toolCallId": "c1", "name": "sky", "input": {}}
    messages = [{"role": "user", "content": "Go"}, {"role": "assistant", "content": [call]}]
    tools = [{"name": "sky", "description": "The sky.", "parameters": {"type": "object"}}]
    body = {"agent": {"name": "script"}, "tools": tools, "messages": messages}
    async with run_gateway(gateway_config(tmp_path, limits={"answer": 30.0}), clock) as portico:
        answer = await portico.client.post("/aap/v3/sessions", json=body)
        assert answer.status_code == 201, answer.text
        session = answer.json()["sessionId"]
        assert (await get_session(portico.client, session))["state"] == "waiting"
        await clock.expire(30.0)
        found = await wait_until_idle(portico.client, session)
        text = "Tool call denied: no result from the application within 30 s"
        assert results(found["history"]["full"]) == {"c1": text}


async def test_cancelled_session_without_an_agent_is_removed_from_memory(tmp_path: Path, write_scenario: WriteScenario) -> None:
    async with run_gateway(gateway_config(tmp_path)) as portico:
        session = await create_waiting_session(portico.client, write_scenario)
        found = await portico.gateway.sessions.get(ADMINISTRATOR, session)
        assert found.live is not None and found.run is not None
        psutil.Process(found.live.pid).kill()  # type: ignore[attr-defined]
        await found.run.wait()
        assert (await get_session(portico.client, session))["state"] == "waiting"
        assert (await portico.client.post(f"/session/{session}/cancel")).json()["cancelled"]
        assert portico.gateway.sessions.held == [], "only sessions with a live agent or a run are in memory"
