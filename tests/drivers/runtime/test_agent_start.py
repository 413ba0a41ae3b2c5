"""Starting an agent: errors, and the time limit of the start, which applies to tasks too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from drivers.claude.codec import ClaudeCodec
from drivers.codecs.output_event_lines import EventLineCodec
from drivers.contract.agent_specs import Limits
from drivers.contract.codec import Command, Launch
from drivers.contract.errors import AgentUnavailable
from drivers.runtime.cli_agent import TIMED_OUT, CliAgent
from drivers.runtime.process import Spawner

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


async def test_a_task_without_a_first_line_ends_at_the_limit_of_the_start(tmp_path: Path) -> None:
    launch = Launch(command("import time; time.sleep(60)", tmp_path, b""), EventLineCodec(once=True))
    agent = await CliAgent.start(launch, Spawner(), Limits(start=0.2, idle=30))
    error, end = await agent.receive()
    assert "limits.start" in error.message
    assert end.exit_code == TIMED_OUT


async def test_after_its_first_line_a_task_may_be_silent_for_longer(tmp_path: Path) -> None:
    program = "import sys, time; print('ready', flush=True); time.sleep(0.6); print('done')"
    agent = await CliAgent.start(Launch(command(program, tmp_path, b""), EventLineCodec(once=True)), Spawner(), Limits(start=0.4))
    events = [*await agent.receive()]
    while events[-1].kind != "session_end":
        events += await agent.receive()
    assert [event.kind for event in events] == ["stdout", "stdout", "session_end"]
    assert events[-1].exit_code == 0
