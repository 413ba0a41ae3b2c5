"""A crash of an agent: the clients of each protocol get the end of its standard error, redacted, and the log has a warning."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.acp_client import RpcFailed, connected
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import execute, user_message

SECRET = "tok-1f9c2d7ab83e"
LINES = [*(f"line {number}" for number in range(20)), "no license for {options.token}", "Segmentation fault"]
END = "\n".join([*LINES[-10:-2], "no license for ***", LINES[-1]])
REASON = f"the agent ended in the middle of the run, with exit code -11. The end of its standard error:\n{END}"


@pytest.fixture
async def crashing(tmp_path: Path, write_scenario: Callable[..., str]) -> AsyncIterator[RunningGateway]:
    scenario = write_scenario([{"text": "Wait,"}, *({"stderr": line} for line in LINES), {"exit": {"signal": "SIGSEGV"}}])
    entry = {"driver": "script", "cwd": str(tmp_path / "scenes"), "options": {"scenario": scenario, "token": SECRET}}
    config = gateway_config(tmp_path, agents={"script": entry}, openai={"tools": "agent"})
    async with run_gateway(config) as running:
        yield running


async def test_a_turn_of_aap(crashing: RunningGateway, caplog: pytest.LogCaptureFixture) -> None:
    client = crashing.client
    session = (await client.post("/aap/v3/sessions", json={"agent": {"name": "script"}})).json()["sessionId"]
    answer = (await client.post(f"/aap/v3/sessions/{session}/turns", json={"messages": [user_message()]})).json()
    assert answer["x-portico"]["error"] == REASON
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage().endswith(f"has ended: {REASON}")


async def test_the_response_of_a_model_api(crashing: RunningGateway) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": [user_message()]}),
        ("/v1/responses", {"input": "hello"}),
        ("/v1/messages", {"messages": [user_message()], "max_tokens": 100}),
    ):
        answer = await crashing.client.post(path, json={"model": "script", **body})
        assert END in str(answer.json()["error"]["message"]), path


async def test_a_prompt_of_acp(crashing: RunningGateway) -> None:
    async with connected(crashing.gateway) as client:
        session = await client.new()
        with pytest.raises(RpcFailed) as failed:
            await client.prompt(session, "go")
    # An error of JSON-RPC has one line.
    assert END.replace("\n", " ") in str(failed.value)


async def test_a_task_has_the_lines_as_events(crashing: RunningGateway, caplog: pytest.LogCaptureFixture) -> None:
    *_, error, end = frames = await execute(crashing.client)
    assert [frame["line"] for frame in frames if frame["kind"] == "stderr"] == [*LINES[:-2], *END.splitlines()[-2:]]
    assert error["message"] == REASON.partition(". The end")[0] and end["exit_code"] == -11
    assert "has ended: the agent ended in the middle of the run, with exit code -11" in caplog.text


async def test_an_agent_that_is_ended_by_the_gateway_is_no_crash(
    portico: RunningGateway, write_scenario: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    options = {"scenario": write_scenario([{"text": "a"}, {"stop": {"reason": "error", "message": "429"}}])}
    session = (await portico.client.post("/aap/v3/sessions", json={"agent": {"name": "script", "options": options}})).json()
    path = f"/aap/v3/sessions/{session['sessionId']}/turns"
    assert (await portico.client.post(path, json={"messages": [user_message()]})).json()["x-portico"]["error"] == "429"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
