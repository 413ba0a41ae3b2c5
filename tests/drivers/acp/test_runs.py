"""Runs of an agent by the Agent Client Protocol: text, results, interrupts, tasks."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from drivers.acp.driver import AcpDriver
from drivers.contract.agent import Prompt
from drivers.contract.agent_specs import TaskSpec
from drivers.contract.messages import ImageBlock, TextBlock
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.process import Spawner
from tests.drivers.acp.small_agent import (
    LIMITS,
    MARK,
    PIXEL,
    Open,
    agent_args,
    agent_text,
    end,
    environment,
    run_events,
    sleepers,
)
from tests.support.waiting import wait_until


async def test_text_thinking_and_usage(open_agent: Open) -> None:
    events = await run_events(await open_agent(), "say hello")
    assert [event.kind for event in events] == ["native_session", "thinking", "agent_token", "usage", "session_end"]
    assert agent_text(events) == "hello"
    assert events[3].model_dump() == {"kind": "usage", "input_tokens": 10, "output_tokens": 5, "cache_read": 2, "cache_write": 0}


async def test_an_interrupt_during_text_and_during_an_approval(open_agent: Open) -> None:
    agent = await open_agent("execute")
    await agent.prompt(Prompt("wait here"))
    while not agent_text(list(await agent.receive())):
        pass
    await agent.interrupt()
    assert end(await run_events(agent)) == (130, "cancelled")
    await run_events(agent, "run sleep 300")
    await agent.interrupt()
    assert end(await run_events(agent)) == (130, "cancelled")
    assert agent_text(await run_events(agent, "say still here")) == "still here"


async def test_an_interrupt_ends_a_command(open_agent: Open) -> None:
    agent = await open_agent("execute!")
    running = asyncio.create_task(run_events(agent, "run echo $$ > pid; exec sleep 300"))
    await wait_until(sleepers)
    await agent.interrupt()
    assert end(await running) == (130, "cancelled")
    assert not sleepers()


async def test_a_cancelled_close_ends_the_commands_too(open_agent: Open) -> None:
    agent = await open_agent("execute!")
    running = asyncio.create_task(run_events(agent, "run sleep 300"))
    await wait_until(sleepers)
    running.cancel()
    closing = asyncio.create_task(agent.close(0.0))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing, running])
    await wait_until(lambda: not sleepers())


async def test_a_plan_the_commands_and_the_title(open_agent: Open) -> None:
    agent = await open_agent()
    events = await run_events(agent, "plan")
    kinds = ["native_session", "plan", "commands", "context_use", "title", "agent_token", "usage", "session_end"]
    assert [event.kind for event in events] == kinds
    assert agent_text(events) == "planned"
    # Unchanged values are not reported again.
    assert [event.kind for event in await run_events(agent, "plan")] == [
        "plan",
        "context_use",
        "agent_token",
        "usage",
        "session_end",
    ]


@pytest.mark.parametrize("flags", ["commands", "commands_later"])
async def test_commands_that_come_between_two_runs(open_agent: Open, flags: str) -> None:
    agent = await open_agent(flags=flags)
    kinds = [event.kind for event in await run_events(agent, "say hello")]
    assert sorted(kinds[:2]) == ["commands", "native_session"]
    # Commands that come after the end of a run are reported in the next one.
    kinds = [event.kind for event in [*await run_events(agent, "late"), *await run_events(agent, "say hello")]]
    assert kinds.count("commands") == 1 and kinds.index("commands") > kinds.index("session_end")


@pytest.mark.parametrize(
    ("prompt", "run_result", "message"),
    [
        ("stop max_tokens", (1, "max_tokens"), ""),
        ("stop refusal", (1, "refusal"), ""),
        ("stop max_turn_requests", (1, "error"), "stopped at its limit of model requests"),
        ("fail no model", (1, "error"), "Internal error: no model (code -32603)"),
        ("exit", (7, "error"), "ended in the middle of the run, with exit code 7"),
    ],
)
async def test_how_runs_end(open_agent: Open, prompt: str, run_result: tuple[int, str], message: str) -> None:
    events = await run_events(await open_agent(), prompt)
    assert end(events) == run_result
    assert message in "".join(event.message for event in events if event.kind == "error")


async def test_an_unknown_request_is_answered(open_agent: Open) -> None:
    assert agent_text(await run_events(await open_agent(), "elicit")) == "answered: -32601"


async def test_an_image(open_agent: Open) -> None:
    prompt = Prompt((TextBlock(text="say seen"), ImageBlock(url=PIXEL)))
    assert agent_text(await run_events(await open_agent(), prompt)) == "saw 1 image of 12 charactersseen"
    agent = await open_agent(flags="noimage")
    events = await run_events(agent, prompt)
    assert end(events) == (1, "error")
    assert agent_text(await run_events(agent, "say fine")) == "fine"


async def test_a_task(tmp_path: Path) -> None:
    for allow in (False, True):
        options = {"task_permissions": "allow" if allow else "reject"}
        spec = TaskSpec(
            sys.executable, tmp_path / "work", environment(tmp_path), agent_args(), options, task="run touch made.txt"
        )
        agent = await AcpDriver().execute(spec, Spawner(MARK), LIMITS)
        assert isinstance(agent, CliAgent)
        events = await run_events(agent)
        await agent.close()
        assert end(events) == (0, "end_turn")
        assert (tmp_path / "work" / "made.txt").exists() is allow
