"""Runs of an agent by the Agent Client Protocol: what it says, how they end, tasks."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from drivers.acp.driver import AcpDriver
from drivers.contract.agent import Prompt
from drivers.contract.messages import ImageBlock, TextBlock
from drivers.contract.specs import TaskSpec
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.process import Spawner
from tests.drivers.acp.talk import ARGS, LIMITS, MARK, PIXEL, Open, end, environment, heard, said, sleepers


async def test_text_thinking_and_usage(open_agent: Open) -> None:
    events = await heard(await open_agent(), "say hello")
    assert [event.kind for event in events] == ["native_session", "thinking", "agent_token", "usage", "session_end"]
    assert said(events) == "hello"
    assert events[3].model_dump() == {"kind": "usage", "input_tokens": 10, "output_tokens": 5, "cache_read": 2, "cache_write": 0}


async def test_an_interrupt_in_text_and_while_asking(open_agent: Open) -> None:
    agent = await open_agent("execute")
    await agent.prompt(Prompt("wait here"))
    while not said(list(await agent.receive())):
        pass
    await agent.interrupt()
    assert end(await heard(agent)) == (130, "cancelled")
    await heard(agent, "run sleep 300")
    await agent.interrupt()
    assert end(await heard(agent)) == (130, "cancelled")
    assert said(await heard(agent, "say still here")) == "still here"


async def test_an_interrupt_ends_a_command(open_agent: Open) -> None:
    agent = await open_agent("execute!")
    running = asyncio.create_task(heard(agent, "run echo $$ > pid; exec sleep 300"))
    for _ in range(3000):
        if sleepers():
            break
        await asyncio.sleep(0.01)
    await agent.interrupt()
    assert end(await running) == (130, "cancelled")
    assert not sleepers()


async def test_a_plan_the_commands_and_the_title(open_agent: Open) -> None:
    agent = await open_agent()
    events = await heard(agent, "plan")
    kinds = ["native_session", "plan", "commands", "context_use", "title", "agent_token", "usage", "session_end"]
    assert [event.kind for event in events] == kinds
    assert said(events) == "planned"
    # What is the same as before is not told again.
    assert [event.kind for event in await heard(agent, "plan")] == ["plan", "context_use", "agent_token", "usage", "session_end"]


@pytest.mark.parametrize("flags", ["commands", "commands_later"])
async def test_commands_that_come_while_no_run_is_under_way(open_agent: Open, flags: str) -> None:
    agent = await open_agent(flags=flags)
    kinds = [event.kind for event in await heard(agent, "say hello")]
    assert sorted(kinds[:2]) == ["commands", "native_session"]
    # Behind the end of a run they are told in the next.
    kinds = [event.kind for event in [*await heard(agent, "late"), *await heard(agent, "say hello")]]
    assert kinds.count("commands") == 1 and kinds.index("commands") > kinds.index("session_end")


@pytest.mark.parametrize(
    ("prompt", "ending", "told"),
    [
        ("stop max_tokens", (1, "max_tokens"), ""),
        ("stop refusal", (1, "refusal"), ""),
        ("stop max_turn_requests", (1, "error"), "stopped at its limit of model requests"),
        ("fail no model", (1, "error"), "Internal error: no model (code -32603)"),
        ("exit", (7, "error"), "ended in the middle of the run, with exit code 7"),
    ],
)
async def test_how_runs_end(open_agent: Open, prompt: str, ending: tuple[int, str], told: str) -> None:
    events = await heard(await open_agent(), prompt)
    assert end(events) == ending
    assert told in "".join(event.message for event in events if event.kind == "error")


async def test_a_request_that_is_not_known_is_answered(open_agent: Open) -> None:
    assert said(await heard(await open_agent(), "elicit")) == "answered: -32601"


async def test_an_image(open_agent: Open) -> None:
    prompt = Prompt((TextBlock(text="say seen"), ImageBlock(url=PIXEL)))
    assert said(await heard(await open_agent(), prompt)) == "saw 1 image of 12 charactersseen"
    agent = await open_agent(flags="noimage")
    events = await heard(agent, prompt)
    assert end(events) == (1, "error")
    assert said(await heard(agent, "say fine")) == "fine"


async def test_a_task(tmp_path: Path) -> None:
    for allow in (False, True):
        options = {"task_permissions": "allow" if allow else "reject"}
        spec = TaskSpec(sys.executable, tmp_path / "work", environment(tmp_path), ARGS, options, task="run touch made.txt")
        agent = await AcpDriver().execute(spec, Spawner(MARK), LIMITS)
        assert isinstance(agent, CliAgent)
        events = await heard(agent)
        await agent.close()
        assert end(events) == (0, "end_turn")
        assert (tmp_path / "work" / "made.txt").exists() is allow
