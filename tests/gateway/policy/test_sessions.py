"""Policy rules in sessions of the `script` agent, whose tool calls write a file when they run."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.support.named_keys import add_key
from tests.support.requests import create_session, execute, expect_error, get_history, send_turn, session_body
from tests.support.sse import parse_frames

Json = dict[str, Any]
WriteScenario = Callable[..., str]

RULES = [
    {"tool": "shell", "when": {"command": "git *"}, "decide": "allow"},
    {"tool": "shell", "when": {"command": "rm *"}, "decide": "deny", "reason": "nothing is removed here"},
    {"tool": "shell", "when": {"command": "push *"}, "decide": "ask"},
]
FREE, CAREFUL = {"name": "shell", "trust": True}, {"name": "shell"}


def shell(call_id: str, command: str) -> Json:
    made = {"path": f"{call_id}.txt", "text": command}
    return {"tool_call": {"id": call_id, "name": "shell", "input": {"command": command}, "result": "ran", "write_file": made}}


def grant(call_id: str) -> Json:
    return {"role": "tool_permission", "toolCallId": call_id, "granted": True}


def results(messages: list[Json]) -> dict[str, Any]:
    return {message["toolCallId"]: message["content"] for message in messages if message["role"] == "tool"}


@pytest.fixture
async def ruled(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    agent = {"driver": "script", "cwd": str(tmp_path / "scenes"), "policy": RULES}
    async with run_gateway(gateway_config(tmp_path, agents={"script": agent, "free": {**agent, "policy": RULES[:1]}})) as running:
        yield running


def written_files(tmp_path: Path) -> list[str]:
    return sorted(path.stem for path in (tmp_path / "scenes").glob("*.txt"))


def audit(tmp_path: Path) -> list[tuple[str, str, str, str | None]]:
    with closing(sqlite3.connect(tmp_path / "data" / "portico.db")) as store:
        return list(store.execute("SELECT call_id, outcome, by, reason FROM audit ORDER BY id"))


async def run_first_turn(running: RunningGateway, mode: str, scenario: str, grants: list[Json]) -> tuple[str, Json, str]:
    """Run the first turn of a new session. Return the session id, the tool results by call id, and the stop reason."""
    body = session_body(options={"scenario": scenario}, grants=grants, stream=mode)
    answer = await running.client.put("/session", json=body)
    assert answer.is_success, answer.text
    if mode == "none":
        found = answer.json()
        return found["sessionId"], results(found["messages"]), found["stopReason"]
    events = parse_frames(answer.text)
    sent_results = {data["toolCallId"]: data["content"] for name, data in events if name == "tool_result"}
    assert [name for name, _ in events].count("turn_stop") == 1 and events[-1][0] == "turn_stop"
    return events[0][1]["sessionId"], sent_results, events[-1][1]["stopReason"]


@pytest.mark.parametrize("mode", ["delta", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("message", "none"))])
@pytest.mark.parametrize("grants", [FREE, CAREFUL], ids=["trusted", "untrusted"])
@pytest.mark.parametrize(
    ("command", "reported", "outcome"),
    [
        ("git status", "ran", ("allowed", "policy[0]", None)),
        ("git status; rm x", "Tool call denied: nothing is removed here", ("denied", "policy[1]", "nothing is removed here")),
        ("push it", None, ("asked", "policy[2]", None)),
        ("git status; ls", "by trust", None),
    ],
)
async def test_decision_for_one_call(
    ruled: RunningGateway,
    write_scenario: WriteScenario,
    tmp_path: Path,
    mode: str,
    grants: Json,
    command: str,
    reported: str | None,
    outcome: Any,
) -> None:
    scenario = write_scenario([shell("one", command), {"text": "done"}])
    if reported == "by trust":
        reported = "ran" if grants is FREE else None
        outcome = ("trusted", "trust", None) if grants is FREE else ("asked", "default", None)
    session, sent_results, stop = await run_first_turn(ruled, mode, scenario, [grants])
    assert (sent_results, stop) == (({"one": reported}, "end_turn") if reported else ({}, "tool_use"))
    assert written_files(tmp_path) == (["one"] if reported == "ran" else [])
    assert audit(tmp_path) == [("one", *outcome)]
    if reported is None:
        assert (await get_history(ruled.client, session))[-1]["role"] == "assistant"
        answer = await send_turn(ruled.client, session, grant("one"))
        assert results(answer["messages"]) == {"one": "ran"} and answer["stopReason"] == "end_turn"
        assert written_files(tmp_path) == ["one"] and audit(tmp_path)[-1] == ("one", "granted", "client", None)
    assert results(await get_history(ruled.client, session)) == {"one": reported or "ran"}


@pytest.mark.parametrize("mode", ["delta", "message", "none"])
async def test_parallel_calls_with_different_decisions(
    ruled: RunningGateway, write_scenario: WriteScenario, tmp_path: Path, mode: str
) -> None:
    calls = [shell("allowed", "git a"), shell("denied", "rm a"), shell("asked", "push a"), shell("open", "make")]
    scenario = write_scenario(
        [{"parallel": calls}, {"text": "{results.allowed} {results.denied} {results.asked} {results.open}"}]
    )
    session, sent_results, stop = await run_first_turn(ruled, mode, scenario, [CAREFUL])
    denied = "Tool call denied: nothing is removed here"
    assert (sent_results, stop, written_files(tmp_path)) == ({"denied": denied}, "tool_use", [])
    assert "'open' is still pending" in await expect_error(
        ruled.client.post(f"/session/{session}", json={"messages": [grant("asked")]}), 400
    )
    both = [grant("asked"), grant("open")]
    assert "'denied' is answered already" in await expect_error(
        ruled.client.post(f"/session/{session}", json={"messages": [*both, grant("denied")]}), 400
    )
    answer = await send_turn(ruled.client, session, *both)
    assert results(answer["messages"]) == {"allowed": "ran", "asked": "ran", "open": "ran"}
    assert answer["messages"][-1]["content"] == f"ran {denied} ran ran"
    assert written_files(tmp_path) == ["allowed", "asked", "open"]
    roles = [message["role"] for message in await get_history(ruled.client, session)]
    assert roles == ["user", "assistant", "tool", "tool", "tool", "tool", "assistant"]


async def test_replies_that_could_not_be_stored_can_be_sent_again(
    ruled: RunningGateway, write_scenario: WriteScenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = write_scenario([{"parallel": [shell("allowed", "git a"), shell("asked", "push a")]}, {"text": "done"}])
    session, _, stop = await run_first_turn(ruled, "none", scenario, [CAREFUL])
    assert stop == "tool_use"
    runs = ruled.gateway.store.runs
    kept = runs.resume

    async def full(*_: object) -> None:
        monkeypatch.setattr(runs, "resume", kept)
        raise OSError("no space left on device")

    monkeypatch.setattr(runs, "resume", full)
    answers = {"messages": [grant("asked")]}
    assert (await ruled.client.post(f"/session/{session}", json=answers)).status_code == 500
    assert written_files(tmp_path) == []
    answer = await send_turn(ruled.client, session, grant("asked"))
    assert answer["stopReason"] == "end_turn"
    assert results(answer["messages"]) == {"allowed": "ran", "asked": "ran"}
    assert written_files(tmp_path) == ["allowed", "asked"]


async def test_application_side_tool_is_denied_by_a_rule(tmp_path: Path, write_scenario: WriteScenario) -> None:
    rule = {"tool": "ask_*", "when": {"who.name": "boss"}, "decide": "deny", "reason": "not him"}
    agent = {"driver": "script", "cwd": str(tmp_path / "scenes"), "policy": [rule]}
    call = {"app_tool": {"id": "c", "name": "ask_him", "input": {"who": {"name": "boss"}}}}
    tool = {"name": "ask_him", "description": "Asks.", "inputSchema": {}}
    async with run_gateway(gateway_config(tmp_path, agents={"script": agent})) as running:
        options = {"scenario": write_scenario([call, {"text": "{results.c}"}])}
        answer = await create_session(running.client, options=options, tools=[tool])
    assert answer["messages"][-1]["content"] == "Tool call denied: not him" and answer["stopReason"] == "end_turn"


async def test_execute_is_rejected_for_an_agent_with_restricting_rules(
    ruled: RunningGateway, write_scenario: WriteScenario
) -> None:
    refused = await expect_error(ruled.client.post("/v1/execute", json={"driver": "script", "task": "x"}), 403)
    assert "agents.script.policy" in refused and "use a session" in refused
    assert (await execute(ruled.client, driver="free"))[-1]["kind"] == "session_end"


async def test_audit_records_have_no_secrets_of_the_gateway_and_remain_after_the_session_is_deleted(
    ruled: RunningGateway, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    options = {
        "scenario": write_scenario([shell("one", f"git {KEY} secret-value-1 " + "x" * 1000), {"text": "done"}]),
        "token": "secret-value-1",
    }
    session = (await create_session(ruled.client, options=options, grants=[CAREFUL]))["sessionId"]
    assert (await ruled.client.delete(f"/session/{session}")).status_code == 204
    [record] = await ruled.gateway.store.audit.newest(10, session)
    assert (record.session_id, record.agent, record.tool, record.outcome) == (session, "script", "shell", "allowed")
    assert record.arguments.startswith('{"command": "git *** secret-value-1 xxx') and len(record.arguments) == 500
    await ruled.gateway.store.audit.delete_before(record.at + 1)
    assert await ruled.gateway.store.audit.newest(10) == []


async def test_decisions_are_logged(
    ruled: RunningGateway, write_scenario: WriteScenario, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gateway.observability.audit")
    options = {"scenario": write_scenario([shell("one", "rm a"), {"text": "done"}])}
    session = (await create_session(ruled.client, options=options, grants=[FREE]))["sessionId"]
    [line] = [record.getMessage() for record in caplog.records if record.name == "gateway.observability.audit"]
    assert line.startswith(f"denied shell of script (call one, session {session}, run run_")
    assert line.endswith("""by policy[1] because 'nothing is removed here': {"command": "rm a"}""")


async def test_user_message_instead_of_replies_cancels_the_calls(
    ruled: RunningGateway, write_scenario: WriteScenario, tmp_path: Path
) -> None:
    options = {"scenario": write_scenario([shell("one", "push it"), {"text": "done"}], {"steps": [{"text": "again"}]})}
    session = (await create_session(ruled.client, options=options, grants=[FREE]))["sessionId"]
    await send_turn(ruled.client, session, "Never mind")
    assert [row[:3] for row in audit(tmp_path)][:2] == [("one", "asked", "policy[2]"), ("one", "cancelled", "client")]
    assert written_files(tmp_path) == []


async def test_audit_names_the_api_key_that_decided(ruled: RunningGateway, tmp_path: Path, write_scenario: WriteScenario) -> None:
    phone = await add_key(ruled.gateway, "phone")
    scenario = write_scenario([shell("first", "push 1"), shell("second", "push 2"), shell("third", "push 3")])
    opened = session_body(options={"scenario": scenario}, grants=[FREE])
    headers = {"Authorization": f"Bearer {phone}"}
    session = (await ruled.client.put("/session", json=opened, headers=headers)).json()["sessionId"]
    await ruled.client.post(f"/session/{session}", json={"messages": [grant("first")]}, headers=headers)
    await send_turn(ruled.client, session, grant("second"))
    await ruled.client.delete(f"/session/{session}", headers=headers)
    decided = [(call_id, outcome, by) for call_id, outcome, by, _ in audit(tmp_path) if outcome != "asked"]
    assert decided == [("first", "granted", "client phone"), ("second", "granted", "client")]


def call(call_id: str, given: Json) -> Json:
    return {"tool_call": {"id": call_id, "name": "shell", "input": given, "result": "ran"}}


async def test_link_to_a_denied_folder_is_denied(tmp_path: Path, write_scenario: WriteScenario) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    rules = [{"tool": "shell", "when": {"path": f"{secret}/*"}, "decide": "deny", "reason": "secret"}]
    agent = {"driver": "script", "cwd": str(tmp_path / "scenes"), "policy": rules}
    scenario = write_scenario([call("a", {"path": "link/id"}), call("b", {"path": "id"}), {"text": "end"}])
    (tmp_path / "scenes" / "link").symlink_to(secret)
    async with run_gateway(gateway_config(tmp_path, agents={"script": agent})) as running:
        _, found, _ = await run_first_turn(running, "none", scenario, [FREE])
    assert found == {"a": "Tool call denied: secret", "b": "ran"}


@pytest.mark.parametrize("line", ["a;" * 20_000, "a|" * 20_000, "eval env " * 25 + "x" * 500])
async def test_requests_are_served_while_a_long_line_is_analysed(
    ruled: RunningGateway, write_scenario: WriteScenario, tmp_path: Path, line: str
) -> None:
    # CPU time of this thread, which has the event loop: the time on the clock depends on the load of the machine.
    longest, stop = 0.0, asyncio.Event()

    async def measure() -> None:
        nonlocal longest
        while not stop.is_set():
            before = time.thread_time()
            assert (await ruled.client.get("/healthz")).is_success
            longest = max(longest, time.thread_time() - before)

    measuring = asyncio.create_task(measure())
    try:
        scenario = write_scenario([call("a", {"command": line}), {"text": "end"}])
        _, found, _ = await run_first_turn(ruled, "none", scenario, [FREE])
    finally:
        stop.set()
        await measuring
    assert found == {}
    assert longest < 0.2
    assert [(outcome, by) for _, outcome, by, _ in audit(tmp_path)] == [("asked", "policy[1]")]
