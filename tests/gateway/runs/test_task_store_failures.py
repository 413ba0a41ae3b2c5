"""Tasks whose store fails: the agent does not start before the task is stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.daemon import gateway_config
from tests.support.faulty_store import run_faulty_gateway
from tests.support.requests import expect_error
from tests.support.sse import parse_output_events
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
KEY = {"Idempotency-Key": "k"}


async def test_agent_of_a_task_that_is_not_stored_does_not_start(tmp_path: Path, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"write_file": {"path": "began", "text": "x"}}, {"text": "done"}])
    agents = {"script": {"driver": "script", "cwd": str(tmp_path / "scenes"), "options": {"scenario": name}}}
    async with run_faulty_gateway(gateway_config(tmp_path, agents=agents)) as (portico, faults):
        fault = faults.fail("runs.start", times=1)
        task = {"driver": "script", "task": "go"}
        await expect_error(portico.client.post("/v1/execute", json=task, headers=KEY), 503)
        assert fault.failures == 1
        assert faults.operations["processes.started"] == 0
        assert not (tmp_path / "scenes" / "began").exists()
        answer = await portico.client.post("/v1/execute", json=task, headers=KEY)
        assert [event["text"] for event in parse_output_events(answer.text) if event["kind"] == "agent_token"] == ["done"]


async def test_task_whose_agent_does_not_start_can_be_repeated_under_its_key(
    tmp_path: Path, write_scenario: WriteScenario
) -> None:
    program = tmp_path / "agent"
    program.write_text("#!/bin/sh\nexec cat\n")
    agents = {"other": {"driver": "acp", "program": str(program), "cwd": str(tmp_path)}}
    async with run_faulty_gateway(gateway_config(tmp_path, agents=agents)) as (portico, _):
        for _ in range(2):
            await expect_error(portico.client.post("/v1/execute", json={"driver": "other", "task": "x"}, headers=KEY), 503)
            assert await portico.gateway.store.runs.unfinished() == []
        await wait_until(lambda: not list((tmp_path / "data" / "state").glob("exec_*")))
