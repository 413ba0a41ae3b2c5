"""How the runs of a scenario end: interrupts, delays, crashes, processes left behind."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.agent import Prompt
from drivers.contract.agent_specs import Limits
from drivers.runtime.pipes import DRAIN_SECONDS
from drivers.runtime.process import TERM_SECONDS
from tests.drivers.script.script_runs import (
    Open,
    alive,
    ask,
    end,
    plain,
    text_in,
    to_end,
    until,
)
from tests.support.manual_clock import ManualClock


async def test_an_interrupt_ends_a_delay_at_once_and_the_next_prompt_works(open_agent: Open) -> None:
    agent = await open_agent({"turns": [{"steps": [{"text": "a"}, {"delay": 600}]}, {"steps": [{"text": "b"}]}]})
    await agent.prompt(Prompt("hello"))
    await until(agent, "agent_token")
    await agent.interrupt()
    assert end(await to_end(agent)) == (130, "cancelled")
    assert text_in(await ask(agent)) == "b"


@pytest.mark.parametrize(
    "step", [{"hang": True}, {"tool_call": {"name": "X", "ask": True}}, {"text": {"text": "ab", "chunk": 1, "every": 600}}]
)
async def test_an_interrupt_ends_every_wait(open_agent: Open, step: Any) -> None:
    agent = await open_agent([{"message_end": True}, step])
    await agent.prompt(Prompt("hello"))
    await until(agent, "message_end")
    await agent.interrupt()
    assert end(await to_end(agent)) == (130, "cancelled")
    assert agent.alive


async def test_an_interrupt_stops_a_flood(open_agent: Open) -> None:
    agent = await open_agent([{"events": 100_000_000}])
    await agent.prompt(Prompt("hello"))
    await until(agent, "agent_token")
    await agent.interrupt()
    while (events := await agent.receive())[-1].kind != "session_end":
        pass
    assert end(events) == (130, "cancelled")


async def test_an_agent_that_ignores_the_interrupt_is_ended(open_agent: Open, clock: ManualClock) -> None:
    agent = await open_agent([{"message_end": True}, {"hang": {"ignore_interrupt": True}}], Limits(grace=30))
    await agent.prompt(Prompt("hello"))
    await until(agent, "message_end")
    await agent.interrupt()
    reading = asyncio.create_task(to_end(agent))
    await clock.expire(30)
    assert end(await reading) == (130, "cancelled")
    assert not agent.alive


async def test_an_agent_that_ignores_everything_is_killed(open_agent: Open, clock: ManualClock) -> None:
    agent = await open_agent([{"message_end": True}, {"hang": {"ignore_term": True}}], Limits(grace=30))
    await agent.prompt(Prompt("hello"))
    await until(agent, "message_end")
    closing = asyncio.create_task(agent.close())
    await clock.expire(30)
    await clock.expire(TERM_SECONDS)
    await closing
    assert not alive(agent.pid)


async def test_end_of_input_ends_it_within_a_delay(open_agent: Open) -> None:
    agent = await open_agent([{"message_end": True}, {"delay": 600}], Limits(grace=120))
    await agent.prompt(Prompt("hello"))
    await until(agent, "message_end")
    await asyncio.wait_for(agent.close(), 60)


async def test_fast_writes_texts_and_ends_calls_at_once(open_agent: Open) -> None:
    steps = [{"text": {"text": "abc", "chunk": 1, "every": 600}}, {"tool_call": {"name": "X", "takes": 600}}]
    assert text_in(await ask(await open_agent(steps, options={"pace": "fast"}))) == "abc"


async def test_fast_keeps_a_slow_stream(open_agent: Open) -> None:
    agent = await open_agent([{"text": "One moment."}, {"delay": 600}, {"text": "Done."}], options={"pace": "fast"})
    await agent.prompt(Prompt("slow"))
    events = await until(agent, "agent_token")
    await agent.interrupt()
    events += await to_end(agent)
    assert (text_in(events), end(events)) == ("One moment.", (130, "cancelled"))


async def test_recorded_keeps_delays(open_agent: Open) -> None:
    began = time.monotonic()
    await ask(await open_agent([{"delay": 0.3}]))
    assert time.monotonic() - began >= 0.3


async def test_a_turn_waits_for_a_file_at_any_pace(open_agent: Open, tmp_path: Path) -> None:
    steps = [{"text": "before"}, {"wait_for_file": "sub/go"}, {"text": "after"}]
    agent = await open_agent(steps, options={"pace": "fast"})
    await agent.prompt(Prompt("go"))
    assert text_in(await until(agent, "agent_token")) == "before"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "go").touch()
    assert text_in(await to_end(agent)) == "after"


async def test_a_turn_that_waits_for_a_file_can_be_interrupted(open_agent: Open) -> None:
    agent = await open_agent([{"text": "before"}, {"wait_for_file": "go"}])
    await agent.prompt(Prompt("go"))
    await until(agent, "agent_token")
    await agent.interrupt()
    assert end(await to_end(agent)) == (130, "cancelled")


@pytest.mark.parametrize(("how", "exit_code"), [(3, 3), (0, 1), ({"signal": "SIGKILL"}, -9)])
async def test_an_exit_in_the_middle_is_an_error_with_stderr(open_agent: Open, how: Any, exit_code: int) -> None:
    agent = await open_agent([{"text": "Wait,"}, {"stderr": "out of {prompt}"}, {"exit": how}])
    events = plain(await ask(agent, "memory"))
    assert events[0] == {"kind": "agent_token", "text": "Wait,"}
    assert ({"kind": "stderr", "line": "out of memory"} in events) == (exit_code != 1)
    assert events[-2]["kind"] == "error"
    assert events[-1] == {"kind": "session_end", "exit_code": exit_code, "stop_reason": "error"}
    assert not agent.alive


@pytest.mark.parametrize("new_session", [False, True])
@pytest.mark.parametrize("hold_stdout", [False, True])
async def test_a_grandchild_is_ended_by_close(open_agent: Open, tmp_path: Path, new_session: bool, hold_stdout: bool) -> None:
    spawn = {"seconds": 600, "new_session": new_session, "hold_stdout": hold_stdout, "pid_file": "pid"}
    agent = await open_agent([{"spawn": spawn}])
    assert end(await ask(agent)) == (0, "end_turn")
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    await agent.close()
    assert not alive(pid)


async def test_a_grandchild_that_holds_stdout_does_not_hold_the_run(open_agent: Open, clock: ManualClock, tmp_path: Path) -> None:
    spawn = {"seconds": 600, "new_session": True, "hold_stdout": True, "pid_file": "pid"}
    running = asyncio.create_task(ask(await open_agent([{"spawn": spawn}, {"exit": 4}])))
    await clock.expire(DRAIN_SECONDS)
    events = await running
    assert end(events) == (4, "error")
    assert not alive(int((tmp_path / "pid").read_text()))
