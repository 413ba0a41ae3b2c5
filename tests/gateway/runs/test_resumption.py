"""Pending calls can be answered after the gateway or the agent has ended."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

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


async def test_calls_that_wait_when_the_gateway_is_killed_wait_after_its_next_start(
    daemon: Daemon, base: BaseUrl, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    await daemon.start()
    name, scenes = write_scenario(STEPS, [{"text": "Well."}]), tmp_path / "scenes"
    async with aap_client(daemon, base) as aap:
        answered, denied, stopped, deleted = [await create_waiting_session(aap, name) for _ in range(4)]
    await daemon.kill()
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        # A denied call is not repeated.
        answer = (await post(aap, denied, DENIED)).json()
        assert [message["content"] for message in answer["messages"]] == [
            "Tool call denied: no",
            "Weather: rain. Note: Tool call denied: no.",
        ]
        assert not (scenes / "note.txt").exists()
        # A user message cancels the calls.
        answer = (await post(aap, stopped, [{"role": "user", "content": "Stop"}])).json()
        assert answer["messages"] == [{"role": "assistant", "content": "Well."}]
        history = await aap.get_history(stopped)
        assert [m["content"] for m in history if m["role"] == "tool"] == ["3 hits", *["Tool call cancelled"] * 2]
        assert (await aap.delete(deleted)).status_code == 204
        assert (await aap.get(deleted)).status_code == 404
        # What is refused has no effect: invalid answers, and those for which no agent starts.
        before = await aap.get_session(answered)
        for wrong, named in (ALL[:1], "'note' is still pending"), ([*ALL, {**ALL[0], "toolCallId": "x"}], "'x' is not a pending"):
            refused = await post(aap, answered, wrong)
            assert refused.status_code == 400 and named in refused.json()["error"]
        kept = (scenes / name).read_text()
        (scenes / name).write_text(json.dumps({"turns": []}))
        assert (await post(aap, answered, ALL)).status_code == 503
        (scenes / name).write_text(kept)
        assert await aap.get_session(answered) == before
        await assert_resumes(aap, answered, scenes)


async def test_calls_can_be_answered_after_each_of_two_restarts(
    daemon: Daemon, base: BaseUrl, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    steps = [*STEPS, {"app_tool": {"id": "more", "name": "get_weather"}}, {"text": "{results.more} {results.note}"}]
    await daemon.start()
    async with aap_client(daemon, base) as aap:
        session = await create_waiting_session(aap, write_scenario(steps))
    await daemon.stop()
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
