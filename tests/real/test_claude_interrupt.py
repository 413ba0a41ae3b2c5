"""Stopping the real claude: a session that is deleted, Ctrl-C in the terminal, and the driver's own interrupt."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import psutil
import pytest

from drivers.claude.driver import ClaudeDriver
from drivers.contract.agent import Agent, Prompt
from drivers.contract.agent_specs import Limits, SessionSpec
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import AgentToken, OutputEvent, SessionEnd, ToolCall
from drivers.runtime.process import Spawner
from tests.conftest import write_config
from tests.real.aap_client import create_session, read_until_event
from tests.real.clis import BIN
from tests.real.conftest import Home
from tests.real.models import Model, message_texts
from tests.real.processes import TIMEOUT_SECONDS, cli_of, processes_of, wait_for_exit
from tests.support.daemon import RunningGateway
from tests.support.waiting import wait_until


async def test_deleting_a_running_session_ends_its_turn_and_its_cli(portico: RunningGateway, home: Home) -> None:
    aap = await create_session(portico.client, "[[plain]] before")
    cli = cli_of(home.path)
    async with aap.open_stream("[[slowtext]]") as frames:
        await read_until_event(frames, "text_delta")
        assert (await aap.info())["state"] == "running"
        assert (await portico.client.delete(f"/session/{aap.id}")).status_code == 204
        last = [frame async for frame in frames][-1]
    await wait_for_exit(cli.pid)
    assert processes_of(home.path) == []
    assert last == ("turn_stop", {"stopReason": "error", "x-portico": {"error": "the session was deleted"}})
    assert (await portico.client.get(f"/session/{aap.id}")).status_code == 404


async def test_a_turn_continues_after_its_client_disconnected(portico: RunningGateway, home: Home, model: Model) -> None:
    aap = await create_session(portico.client, "[[plain]] before")
    async with aap.open_stream("[[slowtext]]") as frames:
        await read_until_event(frames, "text_delta")
    busy = await portico.client.post(f"/session/{aap.id}", json={"messages": [{"role": "user", "content": "too soon"}]})
    assert busy.status_code == 409
    assert (await aap.info())["state"] == "running"
    assert model.request_count("slowtext") == 1
    assert cli_of(home.path).is_running()


async def test_ctrl_c_in_the_terminal_exits_with_130(home: Home) -> None:
    run = await _portico_run(home, "[[slowtext]] hello")
    assert run.stdout is not None
    assert (await asyncio.wait_for(run.stdout.read(5), TIMEOUT_SECONDS)).startswith(b"word")
    run.send_signal(signal.SIGINT)
    _, errors = await asyncio.wait_for(run.communicate(), TIMEOUT_SECONDS)
    assert run.returncode == 130, errors
    assert b"Traceback" not in errors


async def test_a_turn_in_the_terminal(home: Home, model: Model) -> None:
    run = await _portico_run(home, "--", "-x [[plain]]")
    answer, errors = await asyncio.wait_for(run.communicate(), TIMEOUT_SECONDS)
    assert (run.returncode, answer) == (0, b"Hello from the model, this is plain text.\n"), errors
    assert message_texts(model.last_request(), "user") == ["-x [[plain]]"]


async def test_a_failed_turn_in_the_terminal_prints_its_error(home: Home) -> None:
    home.env["CLAUDE_CODE_MAX_RETRIES"] = "0"
    run = await _portico_run(home, "[[e401]]")
    answer, errors = await asyncio.wait_for(run.communicate(), TIMEOUT_SECONDS)
    assert (run.returncode, answer) == (1, b"")
    assert "Invalid API key" in errors.decode()


async def _portico_run(home: Home, *prompt: str) -> asyncio.subprocess.Process:
    config = write_config(home.base, home.config())
    pipe = asyncio.subprocess.PIPE
    argv = [sys.executable, "-m", "gateway", "run", "--config", str(config), "claude", *prompt]
    return await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=home.daemon_env()
    )


@pytest.fixture
async def agent(home: Home) -> AsyncIterator[Agent]:
    """The agent of the driver, without a gateway."""
    spec = SessionSpec(str(BIN / "claude"), home.work, home.env)
    opened = await ClaudeDriver().open(spec, Spawner(), replace(Limits(), grace=2.0))
    yield opened
    await opened.close()


async def test_after_an_interrupt_in_mid_text_the_same_process_takes_the_next_prompt(agent: Agent, home: Home) -> None:
    cli = cli_of(home.path)
    await agent.prompt(Prompt("[[slowtext]]"))
    before = await _until_text(agent)
    await agent.interrupt()
    events = [*before, *await _rest(agent)]
    assert isinstance(end := events[-1], SessionEnd)
    assert (end.exit_code, end.stop_reason) == (130, "cancelled")
    assert 0 < len(_text(events)) < 1500
    await agent.prompt(Prompt("[[plain]]"))
    events = await _rest(agent)
    assert (_text(events), events[-1].stop_reason) == ("Hello from the model, this is plain text.", "end_turn")  # type: ignore[union-attr]
    assert cli_of(home.path) == cli


async def test_an_interrupt_in_a_tool_ends_the_command_and_not_the_cli(home: Home) -> None:
    spec = SessionSpec(str(BIN / "claude"), home.work, home.env, tools=(ToolGrant("Bash", trust=True),))
    agent = await ClaudeDriver().open(spec, Spawner(), replace(Limits(), grace=5.0))
    try:
        cli = cli_of(home.path)
        await agent.prompt(Prompt("[[longbash]]"))
        # Keep reading: a trusted call runs only after the codec has granted its permission request.
        reading = asyncio.create_task(_rest(agent))
        await wait_until(lambda: _sleepers(home), "the command runs")
        await agent.interrupt()
        events = await reading
        assert isinstance(end := events[-1], SessionEnd) and end.stop_reason == "cancelled"
        assert [event.status for event in events if isinstance(event, ToolCall)] == ["started", "failed"]
        await wait_until(lambda: not _sleepers(home), "the command has ended")
        await agent.prompt(Prompt("[[plain]]"))
        assert _text(await _rest(agent)) == "Hello from the model, this is plain text."
        assert cli_of(home.path) == cli
    finally:
        await agent.close()


def _sleepers(home: Home) -> list[psutil.Process]:
    return processes_of(home.path, "python")


async def test_an_immediate_interrupt_is_not_lost(agent: Agent, home: Home) -> None:
    cli = cli_of(home.path)
    for _ in range(3):
        await agent.prompt(Prompt("[[slowtext]]"))
        await agent.interrupt()
        end = (await _rest(agent))[-1]
        assert isinstance(end, SessionEnd) and end.stop_reason == "cancelled"
    await agent.prompt(Prompt("[[plain]]"))
    assert _text(await _rest(agent)) == "Hello from the model, this is plain text."
    assert cli_of(home.path) == cli


async def _until_text(agent: Agent) -> list[OutputEvent]:
    events: list[OutputEvent] = []
    while not _text(events):
        events += await asyncio.wait_for(agent.receive(), TIMEOUT_SECONDS)
    return events


async def _rest(agent: Agent) -> list[OutputEvent]:
    events: list[OutputEvent] = []
    while not (events and isinstance(events[-1], SessionEnd)):
        events += await asyncio.wait_for(agent.receive(), TIMEOUT_SECONDS)
    return events


def _text(events: list[OutputEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, AgentToken))
