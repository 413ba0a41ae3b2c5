"""Scenarios with large outputs, prompts of any form, and tasks."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from drivers.contract.agent import Prompt
from drivers.contract.agent_specs import Limits, SessionSeed
from drivers.contract.events import AgentToken
from drivers.contract.messages import ImageBlock, TextBlock
from drivers.script.driver import PROGRAM
from tests.drivers.script.script_runs import (
    Open,
    ask,
    end,
    plain,
    text_in,
    to_end,
    until,
)
from tests.support.manual_clock import ManualClock


@pytest.mark.parametrize("size", [32, 100_000, 20_000_000, 60_000_000])
async def test_a_big_line_arrives_whole(open_agent: Open, size: int) -> None:
    events = await ask(await open_agent([{"big_line": size}, {"message_end": True}]))
    assert len(text_in(events)) == size - len('{"kind":"agent_token","text":""}')
    assert end(events) == (0, "end_turn")


async def test_ten_thousand_events_arrive_in_order(open_agent: Open) -> None:
    events = await ask(await open_agent([{"events": {"count": 10_000, "text": "{n}:{prompt};"}}]), '"')
    tokens = [event.text for event in events if isinstance(event, AgentToken)]
    assert tokens == [f'{number}:";' for number in range(10_000)]


async def test_events_without_a_number(open_agent: Open) -> None:
    events = await ask(await open_agent([{"events": {"count": 5000, "text": "é"}}]))
    assert text_in(events) == "é" * 5000


async def test_a_prompt_of_a_megabyte_comes_back(open_agent: Open) -> None:
    prompt = "-é\n" * 350_000
    assert text_in(await ask(await open_agent([{"text": {"text": "{prompt}", "chunk": 100_000}}]), prompt)) == prompt


async def test_images_of_several_megabytes(open_agent: Open) -> None:
    agent = await open_agent([{"text": "{images}"}])
    image = ImageBlock(url="data:image/png;base64," + "A" * 8_000_000)
    await agent.prompt(Prompt((TextBlock(text="look"), image, image)))
    assert text_in(await to_end(agent)) == "2"


async def test_lines_that_are_not_events_are_stdout(open_agent: Open) -> None:
    events = plain(await ask(await open_agent([{"line": "npm {WARN: {prompt}"}, {"text": "x"}])))
    assert events[0] == {"kind": "stdout", "line": "npm {WARN: hello"}


async def test_nothing_of_prompt_or_secret_in_the_command_line(open_agent: Open) -> None:
    agent = await open_agent([{"argv": True}, {"delay": 600}], options={"token": "s3cret"}, seed=SessionSeed(system="sys"))
    await agent.prompt(Prompt("-p the prompt"))
    await until(agent, "agent_token")
    line = psutil.Process(agent.pid).cmdline()
    assert line == [sys.executable, "-I", "-S", str(PROGRAM)]
    assert "s3cret" not in str(psutil.Process(agent.pid).environ())


async def test_a_prompt_that_starts_with_a_dash(open_agent: Open, execute: Open) -> None:
    assert text_in(await ask(await open_agent([{"text": "{prompt}"}]), "--task -x")) == "--task -x"
    assert text_in(await to_end(await execute([{"text": "{prompt}"}], "--help"))) == "--help"


async def test_a_task_plays_one_turn(execute: Open) -> None:
    steps = [{"tool_call": {"name": "lookup", "result": "x"}}, {"text": "{prompt} {model} {last_result}"}]
    events = await to_end(await execute(steps, "go", model="paper-2"))
    assert text_in(events) == "go paper-2 x"
    assert end(events) == (0, "end_turn")


async def test_a_task_ends_with_the_exit_code_of_its_turn(execute: Open) -> None:
    events = await to_end(await execute([{"stderr": "why"}, {"stop": {"reason": "error", "message": "no"}}]))
    assert end(events) == (1, "error")
    assert [event["kind"] for event in plain(events)] == ["error", "stderr", "session_end"]


async def test_calls_of_a_task_that_need_a_client_fail(execute: Open, tmp_path: Path) -> None:
    steps = [{"tool_call": {"name": "shell", "ask": True}}, {"app_tool": {"name": "x"}}, {"text": "done"}]
    events = await to_end(await execute(steps))
    assert [event["status"] for event in plain(events) if event["kind"] == "tool_call"] == ["started", "failed"] * 2
    assert text_in(events) == "done"


async def test_a_task_delays_and_hangs_after_the_end_of_its_input(execute: Open, clock: ManualClock) -> None:
    assert text_in(await to_end(await execute([{"delay": 0.1}, {"text": "x"}]))) == "x"
    agent = await execute([{"message_end": True}, {"hang": True}], limits=Limits(grace=30))
    await until(agent, "message_end")
    await agent.interrupt()
    assert end(await to_end(agent))[1] == "cancelled"


async def test_a_task_of_a_megabyte(execute: Open) -> None:
    task = "x" * 1_000_000
    assert text_in(await to_end(await execute([{"text": {"text": "{prompt}", "chunk": 500_000}}], task))) == task
