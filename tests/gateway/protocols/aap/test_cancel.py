"""`POST …/cancel`, and the effect of a disconnect on a run."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.event_streams import follow_events, read_until
from tests.support.requests import (
    create_session,
    expect_error,
    get_history,
    get_session,
    is_alive,
    read_pid,
    send_turn,
    session_body,
    user_message,
    wait_until_idle,
)
from tests.support.sse import parse_events
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("also_in_a_cluster")
WriteScenario = Callable[..., str]
TOOL = {"spawn": {"seconds": 300, "new_session": True, "pid_file": "tool"}}


async def cancel(portico: RunningGateway, session: str) -> dict[str, Any]:
    answer = await portico.client.post(f"/session/{session}/cancel")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def _ignores(pid: int, number: signal.Signals) -> bool:
    """Whether a process ignores a signal. It is not known on other systems than Linux, and taken for granted."""
    if sys.platform != "linux":
        return True
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    ignored = int(next(line.split()[1] for line in lines if line.startswith("SigIgn:")), 16)
    return bool(ignored >> (number - 1) & 1)


@pytest.mark.parametrize("ignores_signals", [False, True])
async def test_cancelled_run_stops_at_once_with_one_turn_stop(
    portico: RunningGateway, write_scenario: WriteScenario, tmp_path: Path, ignores_signals: bool
) -> None:
    """An agent that ignores signals is killed with its whole process tree."""
    hang = {"hang": {"ignore_interrupt": ignores_signals, "ignore_term": ignores_signals}}
    name = write_scenario({"when": "hang", "steps": [{"text": "begin"}, TOOL, hang]}, [{"text": "{turn} "}, {"remember": True}])
    session = (await create_session(portico.client, "script", "one", options={"scenario": name}))["sessionId"]
    body = {"messages": [user_message("hang")], "stream": "delta"}
    turn = asyncio.create_task(portico.client.post(f"/session/{session}", json=body))
    pid = await read_pid(tmp_path / "scenes" / "tool")
    if ignores_signals:
        # The step after that of the tool: before it, an interrupt ends the turn and no process.
        await wait_until(lambda: _ignores(psutil.Process(pid).ppid(), signal.SIGTERM))
    started = time.monotonic()
    assert await cancel(portico, session) == {"sessionId": session, "cancelled": True, "state": "idle"}
    seconds = time.monotonic() - started
    events = parse_events((await turn).text)
    assert [event[1] for event in events] == ["turn_start", "text_delta", "turn_stop"]
    assert events[-1][2] == {"stopReason": "end_turn"}
    if ignores_signals:
        assert not is_alive(pid)
    assert (await send_turn(portico.client, session, "go"))["messages"][0]["content"] == '3 ["one", "hang"]'
    assert (await get_history(portico.client, session))[2:4] == [user_message("hang"), {"role": "assistant", "content": "begin"}]
    assert seconds < 60, "it takes about 1 s on an idle machine; the agent hangs for ever"


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
    async with follow_events(portico.client, session) as follower:
        assert (await cancel(portico, session))["cancelled"]
        assert (await asyncio.wait_for(read_until(follower, "tool_calls_cancelled"), 60))[-1][2] == {"toolCallIds": ["a"]}
    found = await get_history(portico.client, session)
    assert found[-1] == {"role": "tool", "toolCallId": "a", "content": "Tool call cancelled"}
    assert (await send_turn(portico.client, session, "go"))["messages"] == [{"role": "assistant", "content": "well"}]
    assert (await cancel(portico, session))["cancelled"] is False


async def test_concurrent_cancels_stop_the_run_once(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    body = session_body(options={"scenario": write_scenario([{"text": "x"}, {"hang": True}])}, stream="delta")
    turn = asyncio.create_task(portico.client.put("/session", json=body))
    session = str(await wait_until(lambda: _only_session(portico)))
    await wait_until(lambda: _is_running(portico, session))
    found = await asyncio.gather(*(cancel(portico, session) for _ in range(3)))
    assert sorted(one["cancelled"] for one in found) == [False, False, True]
    assert [event[1] for event in parse_events((await turn).text)].count("turn_stop") == 1


@pytest.mark.parametrize("mode", ["delta", pytest.param("none", marks=pytest.mark.long)])
@pytest.mark.parametrize(("configured", "requested", "continues"), [
    ("continue", None, True), ("continue", "cancel", False), ("cancel", None, False), ("cancel", "continue", True),
])  # fmt: skip
async def test_disconnect_continues_or_cancels_the_run_as_configured(
    tmp_path: Path, write_scenario: WriteScenario, mode: str, configured: str, requested: str | None, continues: bool
) -> None:
    steps = [{"text": "begin"}, {"write_file": {"path": "began", "text": "x"}}, {"wait_for_file": "go"}, {"text": "end"}]
    body = session_body(
        options={"scenario": write_scenario(steps)}, stream=mode, **({"on_disconnect": requested} if requested else {})
    )
    async with run_gateway(gateway_config(tmp_path, server={"on_disconnect": configured})) as portico:
        turn = asyncio.create_task(portico.client.put("/session", json=body))
        await wait_until((tmp_path / "scenes" / "began").exists)
        turn.cancel()
        await asyncio.wait([turn])
        session = str(await wait_until(lambda: _only_session(portico)))
        if continues:
            (tmp_path / "scenes" / "go").touch()
        await wait_until_idle(portico.client, session)
        messages = (await get_history(portico.client, session))[1:]
    assert messages == [{"role": "assistant", "content": "beginend" if continues else "begin"}]


async def _only_session(portico: RunningGateway) -> str | None:
    found = (await portico.client.get("/sessions")).json()["sessions"]
    return found[0] if found else None


async def _is_running(portico: RunningGateway, session: str) -> bool:
    return (await get_session(portico.client, session))["state"] == "running"
