"""Pending calls can be answered after the gateway or the agent has ended."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gateway.security.authentication import ADMINISTRATOR
from tests.support.aap_client import AapClient, BaseUrl
from tests.support.daemon import Daemon, RunningGateway

Json = dict[str, Any]

WEATHER = {"name": "get_weather", "description": "The weather.", "inputSchema": {"type": "object"}}
NOTE = {"path": "note.txt", "text": "Tokyo"}
STEPS = [
    {"text": "I will check."},
    {
        "parallel": [
            {"app_tool": {"id": "weather", "name": "get_weather", "input": {"location": "Tokyo"}}},
            {"tool_call": {"name": "lookup", "input": {"query": "x"}, "result": "3 hits"}},
            {"tool_call": {"id": "note", "name": "write_note", "input": NOTE, "result": "written", "write_file": NOTE}},
        ]
    },
    {"text": "Weather: {results.weather}. Note: {results.note}."},
]
ALL = [
    {"role": "tool", "toolCallId": "weather", "content": "rain"},
    {"role": "tool_permission", "toolCallId": "note", "granted": True},
]
DENIED = [ALL[0], {"role": "tool_permission", "toolCallId": "note", "granted": False, "reason": "no"}]

WriteScenario = Callable[..., str]


@asynccontextmanager
async def aap_client(daemon: Daemon, base: BaseUrl) -> AsyncIterator[AapClient]:
    async with daemon.client() as client:
        yield AapClient(client, base)


async def create_waiting_session(aap: AapClient, scenario: str) -> str:
    """Create a session that waits for a result (`weather`) and a permission (`note`), and return its id."""
    grants = [{"name": "lookup", "trust": True}, {"name": "write_note"}]
    answer = await aap.create_session("script", "Go", grants=grants, options={"scenario": scenario}, tools=[WEATHER])
    assert answer["stopReason"] == "tool_use", answer
    return str(answer["sessionId"])


async def post(aap: AapClient, session: str, messages: list[Json]) -> httpx.Response:
    return await aap.post(session, {"messages": messages})


async def assert_resumes(aap: AapClient, session: str, folder: Path) -> None:
    """Send the replies. The agent repeats the granted call, which runs without another permission request."""
    assert (await aap.get_session(session))["state"] == "waiting"
    assert not (folder / "note.txt").exists()
    response = await post(aap, session, ALL)
    answer = response.json()
    assert (response.status_code, answer["stopReason"]) == (200, "end_turn"), answer
    assert (folder / "note.txt").read_text() == "Tokyo"
    approved, again, written, last = answer["messages"]
    assert approved["toolCallId"] == "note" and "approved" in approved["content"]
    assert again["content"][0] == {"type": "tool_use", "toolCallId": "note_again", "name": "write_note", "input": NOTE}
    assert written == {"role": "tool", "toolCallId": "note_again", "content": "written"}
    assert last == {"role": "assistant", "content": "Weather: rain. Note: written."}
    history = await aap.get_history(session)
    assert [message["role"] for message in history] == [
        "user", "assistant", "tool", "tool", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    twice = await post(aap, session, ALL)
    assert twice.status_code == 400 and "'note', 'weather' is answered already" in twice.json()["error"]
    assert await aap.get_history(session) == history


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_calls_can_be_answered_after_the_gateway_was_restarted(
    daemon: Daemon, base: BaseUrl, write_scenario: WriteScenario, tmp_path: Path, how: signal.Signals
) -> None:
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        session = await create_waiting_session(aap, write_scenario(STEPS))
    await (daemon.kill() if how == signal.SIGKILL else daemon.stop())
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        await assert_resumes(aap, session, tmp_path / "scenes")
        later = (await post(aap, session, [{"role": "user", "content": "And?"}])).json()
        assert later["stopReason"] == "tool_use"


async def test_calls_can_be_answered_after_two_restarts(
    daemon: Daemon, base: BaseUrl, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    steps = [*STEPS, {"app_tool": {"id": "more", "name": "get_weather"}}, {"text": "{results.more} {results.note}"}]
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        session = await create_waiting_session(aap, write_scenario(steps))
    await daemon.kill()
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        assert (await post(aap, session, ALL)).json()["stopReason"] == "tool_use"
    await daemon.kill()
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        answer = (await post(aap, session, [{"role": "tool", "toolCallId": "more", "content": "sun"}])).json()
        assert answer["messages"] == [{"role": "assistant", "content": "sun written"}], answer


async def test_calls_can_be_answered_after_the_agent_ended(
    portico: RunningGateway, aap: AapClient, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    session = await create_waiting_session(aap, write_scenario(STEPS))
    live = (await portico.gateway.sessions.get(ADMINISTRATOR, session)).live
    assert live is not None
    process = psutil.Process(live.pid)  # type: ignore[attr-defined]
    process.kill()
    run = (await portico.gateway.sessions.get(ADMINISTRATOR, session)).run
    assert run is not None
    await run.wait()
    await assert_resumes(aap, session, tmp_path / "scenes")


async def test_repeated_replies_are_rejected_while_the_run_continues(
    portico: RunningGateway, aap: AapClient, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    session = await create_waiting_session(aap, write_scenario([*STEPS, {"hang": {}}]))
    async with aap.stream(session, *ALL) as response:
        async for line in response.aiter_lines():
            if "Weather" in line:
                break
        twice = await post(aap, session, ALL)
        assert twice.status_code == 400 and "is answered already" in twice.json()["error"]
        new = await post(aap, session, [{"role": "tool", "toolCallId": "new", "content": "x"}])
        assert new.status_code == 409
    await aap.delete(session)


async def test_denied_call_is_not_repeated_after_a_restart(
    daemon: Daemon, base: BaseUrl, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        session = await create_waiting_session(aap, write_scenario(STEPS))
    await daemon.kill()
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        answer = (await post(aap, session, DENIED)).json()
    assert [message["content"] for message in answer["messages"]] == [
        "Tool call denied: no",
        "Weather: rain. Note: Tool call denied: no.",
    ]
    assert not (tmp_path / "scenes" / "note.txt").exists()


async def test_user_message_cancels_the_pending_calls_after_a_restart(
    daemon: Daemon, base: BaseUrl, write_scenario: WriteScenario
) -> None:
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        session = await create_waiting_session(aap, write_scenario(STEPS, [{"text": "Well."}]))
    await daemon.kill()
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        answer = (await post(aap, session, [{"role": "user", "content": "Stop"}])).json()
        assert answer["messages"] == [{"role": "assistant", "content": "Well."}]
        history = await aap.get_history(session)
        assert [m["content"] for m in history if m["role"] == "tool"] == ["3 hits", *["Tool call cancelled"] * 2]


async def test_invalid_replies_are_rejected_without_effect(
    daemon: Daemon, base: BaseUrl, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        session = await create_waiting_session(aap, write_scenario(STEPS))
    await daemon.kill()
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        before = await aap.get_session(session)
        for wrong, named in (ALL[:1], "'note' is still pending"), ([*ALL, {**ALL[0], "toolCallId": "x"}], "'x' is not a pending"):
            refused = await post(aap, session, wrong)
            assert refused.status_code == 400 and named in refused.json()["error"]
        assert await aap.get_session(session) == before
        await assert_resumes(aap, session, tmp_path / "scenes")


async def test_calls_stay_pending_when_the_agent_does_not_start(
    daemon: Daemon, base: BaseUrl, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        session = await create_waiting_session(aap, write_scenario(STEPS))
    await daemon.kill()
    scenario = tmp_path / "scenes" / "scene.json"
    kept = scenario.read_text()
    scenario.write_text(json.dumps({"turns": []}))
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        assert (await post(aap, session, ALL)).status_code == 503
        scenario.write_text(kept)
        await assert_resumes(aap, session, tmp_path / "scenes")


async def test_waiting_session_can_be_deleted_after_a_restart(
    daemon: Daemon, base: BaseUrl, write_scenario: WriteScenario
) -> None:
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        session = await create_waiting_session(aap, write_scenario(STEPS))
    await daemon.kill()
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        assert (await aap.delete(session)).status_code == 204
        assert (await aap.get(session)).status_code == 404
