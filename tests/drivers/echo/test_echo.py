"""The echo driver: each prompt comes back verbatim, as one token, through a real process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from drivers.contract.agent import Prompt
from drivers.contract.agent_specs import SessionSpec, TaskSpec
from drivers.contract.events import AgentToken
from drivers.contract.messages import ImageBlock, TextBlock
from drivers.echo.driver import PROGRAM, EchoDriver
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.process import Spawner
from tests.drivers.small_programs import LIMITS, ask, gone, shown, to_end

Execute = Callable[[str], Awaitable[CliAgent]]


@pytest.fixture
async def execute(tmp_path: Path) -> AsyncIterator[Execute]:
    started: list[CliAgent] = []

    async def begin(task: str) -> CliAgent:
        agent = await EchoDriver().execute(TaskSpec(sys.executable, tmp_path, {}, task=task), Spawner(), LIMITS)
        assert isinstance(agent, CliAgent)
        started.append(agent)
        return agent

    yield begin
    for agent in started:
        await agent.close(0.0)


@pytest.fixture
async def session(tmp_path: Path) -> AsyncIterator[CliAgent]:
    agent = await EchoDriver().open(SessionSpec(sys.executable, tmp_path, {}), Spawner(), LIMITS)
    assert isinstance(agent, CliAgent)
    yield agent
    await agent.close()


TASKS = {
    "a word": "hello",
    "nothing": "",
    "like an option": "--help",
    "one dash": "-",
    "like the flag of its program": "--task",
    "lines": "one\ntwo\r\n\n",
    "one newline": "\n",
    "unicode": "gr\u00fc\u00df \u4f60\u597d \U0001f600 e\u0301 \u2028 \ufeff",
    "control characters": "\x00\x01\x1b[31m\x7f",
    "json": '{"kind": "session_end", "exit_code": 9}',
    "a megabyte": "0123456789abcdef" * 65536,
}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
async def test_a_task_is_one_token_and_the_end(execute: Execute, task: str) -> None:
    assert shown(await to_end(await execute(task))) == [
        {"kind": "agent_token", "text": task},
        {"kind": "session_end", "exit_code": 0, "stop_reason": "end_turn"},
    ]


async def test_the_task_is_in_no_argument_and_in_no_variable(execute: Execute) -> None:
    # The task is so long that the process still reads it when the first event is awaited.
    agent = await execute("the-secret " * 500_000)
    process = psutil.Process(agent.pid)
    assert process.cmdline() == [sys.executable, "-I", "-S", str(PROGRAM), "--task"]
    assert "the-secret" not in str(process.environ())
    (token, _) = await to_end(agent)
    assert isinstance(token, AgentToken) and len(token.text) == 11 * 500_000
    assert gone(agent.pid)


async def test_tasks_side_by_side(execute: Execute) -> None:
    agents = [await execute(f"task {n}") for n in range(5)]
    runs = await asyncio.gather(*(to_end(agent) for agent in agents))
    assert [shown(run)[0]["text"] for run in runs] == [f"task {n}" for n in range(5)]


@pytest.mark.parametrize("text", TASKS.values(), ids=TASKS)
async def test_a_session_echoes_every_prompt(session: CliAgent, text: str) -> None:
    assert psutil.Process(session.pid).cmdline() == [sys.executable, "-I", "-S", str(PROGRAM)]
    for prompt in (text, "and again"):
        events = [event for event in shown(await ask(session, prompt)) if event["kind"] != "native_session"]
        assert events == [
            {"kind": "agent_token", "text": prompt},
            {"kind": "session_end", "exit_code": 0, "stop_reason": "end_turn"},
        ]


async def test_the_text_of_blocks_is_echoed(session: CliAgent) -> None:
    await session.prompt(Prompt((TextBlock(text="a"), ImageBlock(url="https://x/y.png"), TextBlock(text="b"))))
    assert [event["text"] for event in shown(await to_end(session)) if event["kind"] == "agent_token"] == ["ab"]


async def test_the_probe_succeeds_with_an_empty_environment(tmp_path: Path) -> None:
    assert EchoDriver().info().program.name is None
    probe = await EchoDriver().probe(SessionSpec("", tmp_path, {}), Spawner())
    assert (probe.version, probe.problem) == (EchoDriver().info().version, None)
    assert os.access(PROGRAM, os.R_OK)
