"""`POST …/cancel`, and what a dropped connection means."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import RunningGateway, gateway_config, run_gateway
from tests.gateway.event_streams import follow_events, parse_events, read_until
from tests.gateway.requests import (
    create_session,
    expect_error,
    get_history,
    get_session,
    is_alive,
    read_pid,
    send_turn,
    session_body,
    user_message,
    wait_until,
    wait_until_idle,
)

WriteScenario = Callable[..., str]
TOOL = {"spawn": {"seconds": 300, "new_session": True, "pid_file": "tool"}}


async def cancel(portico: RunningGateway, session: str) -> dict[str, Any]:
    answer = await portico.client.post(f"/session/{session}/cancel")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("stubborn", [False, True])
async def test_cancelled_run_stops_at_once_with_one_turn_stop(
    portico: RunningGateway, write_scenario: WriteScenario, tmp_path: Path, stubborn: bool
) -> None:
    """Also one whose agent does not listen: then its whole tree is ended, with the tools that it runs."""
    hang = {"hang": {"ignore_interrupt": stubborn, "ignore_term": stubborn}}
    name = write_scenario({"when": "hang", "steps": [{"text": "begin"}, TOOL, hang]}, [{"text": "{turn} "}, {"remember": True}])
    session = (await create_session(portico.client, "script", "one", options={"scenario": name}))["sessionId"]
    body = {"messages": [user_message("hang")], "stream": "delta"}
    turn = asyncio.create_task(portico.client.post(f"/session/{session}", json=body))
    pid = await read_pid(tmp_path / "scenes" / "tool")
    began = time.monotonic()
    assert await cancel(portico, session) == {"sessionId": session, "cancelled": True, "state": "idle"}
    took = time.monotonic() - began
    events = parse_events((await turn).text)
    assert [event[1] for event in events] == ["turn_start", "text_delta", "turn_stop"]
    assert events[-1][2] == {"stopReason": "end_turn"}
    if stubborn:
        assert not is_alive(pid)
    assert (await send_turn(portico.client, session, "go"))["messages"][0]["content"] == '3 ["one", "hang"]'
    assert (await get_history(portico.client, session))[2:4] == [user_message("hang"), {"role": "assistant", "content": "begin"}]
    assert took < 60, "1 s on a machine that has nothing else to do; the agent hangs for ever"


async def test_cancel_of_an_idle_session_changes_nothing(portico: RunningGateway) -> None:
    session = (await create_session(portico.client, "echo"))["sessionId"]
    before = await get_session(portico.client, session)
    for _ in range(2):
        assert await cancel(portico, session) == {"sessionId": session, "cancelled": False, "state": "idle"}
    assert await get_session(portico.client, session) == before
    await expect_error(portico.client.post("/session/none/cancel"), 404)


async def test_cancel_cancels_the_pending_calls(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    fields = {"tools": [{"name": "look", "description": "", "inputSchema": {}}]}
    name = write_scenario([{"app_tool": {"name": "look", "id": "a"}}], [{"text": "well"}])
    session = (await create_session(portico.client, options={"scenario": name}, **fields))["sessionId"]
    async with follow_events(portico.client, session) as window:
        assert (await cancel(portico, session))["cancelled"]
        assert (await asyncio.wait_for(read_until(window, "tool_calls_cancelled"), 60))[-1][2] == {"toolCallIds": ["a"]}
    found = await get_history(portico.client, session)
    assert found[-1] == {"role": "tool", "toolCallId": "a", "content": "Tool call cancelled"}
    assert (await send_turn(portico.client, session, "go"))["messages"] == [{"role": "assistant", "content": "well"}]
    assert (await cancel(portico, session))["cancelled"] is False


async def test_concurrent_cancels_stop_the_run_once(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    body = session_body(options={"scenario": write_scenario([{"text": "x"}, {"hang": True}])}, stream="delta")
    turn = asyncio.create_task(portico.client.put("/session", json=body))
    session = str(await wait_until(lambda: _only(portico)))
    await wait_until(lambda: _is_running(portico, session))
    found = await asyncio.gather(*(cancel(portico, session) for _ in range(3)))
    assert sorted(one["cancelled"] for one in found) == [False, False, True]
    assert [event[1] for event in parse_events((await turn).text)].count("turn_stop") == 1


@pytest.mark.parametrize("mode", ["none", "delta"])
@pytest.mark.parametrize(("config", "asked", "goes_on"), [
    ("continue", None, True), ("continue", "cancel", False), ("cancel", None, False), ("cancel", "continue", True),
])  # fmt: skip
async def test_disconnect_continues_or_cancels_the_run_as_configured(
    tmp_path: Path, write_scenario: WriteScenario, mode: str, config: str, asked: str | None, goes_on: bool
) -> None:
    steps = [{"text": "begin"}, {"write_file": {"path": "began", "text": "x"}}, {"delay": 1.0}, {"text": "end"}]
    body = session_body(options={"scenario": write_scenario(steps)}, stream=mode, **({"on_disconnect": asked} if asked else {}))
    async with run_gateway(gateway_config(tmp_path, server={"on_disconnect": config})) as portico:
        turn = asyncio.create_task(portico.client.put("/session", json=body))
        await wait_until((tmp_path / "scenes" / "began").exists)
        turn.cancel()
        await asyncio.wait([turn])
        session = str(await wait_until(lambda: _only(portico)))
        await wait_until_idle(portico.client, session)
        received_text = (await get_history(portico.client, session))[1:]
    assert received_text == [{"role": "assistant", "content": "beginend" if goes_on else "begin"}]


async def _only(portico: RunningGateway) -> str | None:
    found = (await portico.client.get("/sessions")).json()["sessions"]
    return found[0] if found else None


async def _is_running(portico: RunningGateway, session: str) -> bool:
    return (await get_session(portico.client, session))["state"] == "running"
