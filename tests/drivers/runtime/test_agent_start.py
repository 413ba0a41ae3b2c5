"""Starting an agent: errors, a history that the CLI cannot have, and the time limit of the start, which applies to tasks too."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from drivers.claude.codec import ClaudeCodec
from drivers.contract.agent_specs import Limits, SessionSeed, SessionSpec, TaskSpec
from drivers.contract.codec import Command, Launch
from drivers.contract.driver_info import DriverInfo
from drivers.contract.errors import AgentUnavailable
from drivers.contract.messages import UserMessage
from drivers.runtime.cli_agent import TIMED_OUT, CliAgent
from drivers.runtime.cli_driver import CliDriver
from drivers.runtime.process import Spawner
from tests.drivers.small_programs import OpenAgent, end_of, to_end, until
from tests.support.manual_clock import ManualClock

REFUSES = """
import json, sys
sys.stdin.readline()
response = {"subtype": "error", "request_id": "init", "error": "no hooks"}
print(json.dumps({"type": "control_response", "response": response}), flush=True)
sys.stdin.read()
"""


def command(program: str, folder: Path, stdin: bytes | None = None) -> Command:
    return Command((sys.executable, "-I", "-S", "-c", program), folder, {}, stdin=stdin)


async def test_a_session_that_the_cli_rejects_is_unavailable_at_once(tmp_path: Path) -> None:
    with pytest.raises(AgentUnavailable, match="claude does not open a session: no hooks"):
        await CliAgent.start(Launch(command(REFUSES, tmp_path), ClaudeCodec()), Spawner(), Limits())


class TakesNoHistory(CliDriver):
    name = "small"

    def info(self) -> DriverInfo:
        return DriverInfo("Small", "For tests.")

    def session(self, spec: SessionSpec) -> Launch:
        raise AssertionError("a session begins without its history")

    def task(self, spec: TaskSpec) -> Launch:
        raise NotImplementedError


async def test_a_session_whose_history_the_cli_cannot_be_given_does_not_begin_without_it(tmp_path: Path) -> None:
    seed = SessionSeed(history=(UserMessage(content="before"),))
    with pytest.raises(AgentUnavailable, match="its own session is gone, and it cannot be given a history"):
        await TakesNoHistory().open(SessionSpec("small", tmp_path, {}, seed=seed), Spawner(), Limits())


async def test_a_task_without_a_first_line_ends_at_the_limit_of_the_start(open_agent: OpenAgent, clock: ManualClock) -> None:
    agent = await open_agent("time.sleep(600)", Limits(start=10, idle=20), task="do")
    reading = asyncio.create_task(to_end(agent))
    await clock.expire(10)
    error, end = await reading
    assert "limits.start" in error.message  # type: ignore[union-attr]
    assert end.exit_code == TIMED_OUT  # type: ignore[union-attr]


async def test_after_its_first_line_a_task_may_be_silent_for_longer(
    open_agent: OpenAgent, clock: ManualClock, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    code = f"print('ready', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.005)\nprint('done')"
    agent = await open_agent(code, Limits(start=10, idle=20), task="do")
    events = await until(agent, "stdout")
    reading = asyncio.create_task(to_end(agent))
    await clock.advance(15)
    go.touch()
    events += await reading
    assert [event.kind for event in events] == ["stdout", "stdout", "session_end"]
    assert end_of(events).exit_code == 0
