"""Agents with one process per turn: resuming, interrupts, crashes, failed starts, and tools by MCP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drivers import (
    Agent,
    AgentGone,
    AgentUnavailable,
    Call,
    Capabilities,
    Command,
    DriverError,
    DriverInfo,
    Launch,
    Limits,
    Mcp,
    Program,
    Prompt,
    ResumeFailed,
    SessionSeed,
    SessionSpec,
    Spawner,
    TaskSpec,
    ToolRequest,
    ToolResponse,
    ToolSpec,
    TurnCodec,
    TurnProcessDriver,
)
from drivers.contract.events import AgentToken, Error, OutputEvent, SessionEnd, Stdout, ToolCall
from drivers.contract.messages import UserMessage
from drivers.contract.tool_server import ToolServer
from tests.drivers.small_programs import LIMITS, ask, end_of, text_in
from tests.support.manual_clock import ManualClock

PROGRAM = """
import os, sys, time
prompt = sys.stdin.read()
if prompt == "gone": print("gone", flush=True); sys.exit(1)
print("id", "7" if len(sys.argv) < 2 else sys.argv[1], flush=True)
if prompt == "sleep": time.sleep(600)
if prompt == "crash": os._exit(3)
if prompt == "call": print("call 1", flush=True); os._exit(3)
if prompt == "leave": print("call 1", flush=True); sys.exit(0)
if prompt == "hang": print("call 1", flush=True); time.sleep(600)
if prompt == "fail": print("failed", flush=True); sys.exit(1)
print("text", *sys.argv[1:], prompt, flush=True)
"""
FACTS = DriverInfo("Small", "For tests.", program=Program(sys.executable))


class SmallCodec(TurnCodec):
    def receive(self, line: bytes) -> list[OutputEvent]:
        word, _, rest = line.decode().partition(" ")
        if word == "id":
            self.native_id = rest
        elif word == "failed":
            self.run_result = SessionEnd(exit_code=1, stop_reason="error")
        elif word == "gone":
            self.run_result = SessionEnd(exit_code=1, stop_reason="error")
            return [Error(message="there is no such session")]
        elif word == "call":
            return self.calls.start(Call(rest, "look"))
        return [AgentToken(text=rest)] if word == "text" else [Stdout(line=line.decode())]


class SmallDriver(TurnProcessDriver):
    name = "small"

    def __init__(self, program: str = PROGRAM, gone: str | None = None, **facts: Any) -> None:
        self._program, self._gone, self._facts = program, gone, facts
        self._refusal = ResumeFailed("it was removed")
        self.specs: list[SessionSpec] = []

    def info(self) -> DriverInfo:
        return replace(FACTS, capabilities=Capabilities(**self._facts))

    def turn(self, spec: SessionSpec, prompt: Prompt) -> Launch:
        self.specs.append(spec)
        if prompt.text == "refuse":
            raise self._refusal
        resume = (spec.seed.resume,) if spec.seed.resume else ()
        argv = (spec.program, "-IS", "-c", self._program, *resume)
        return Launch(Command(argv, spec.cwd, spec.env, prompt.text.encode()), SmallCodec())

    async def has_session(self, spec: SessionSpec, spawner: Spawner) -> bool:
        if spec.seed.resume == "slow":
            raise TimeoutError
        return spec.seed.resume != self._gone


class FakeToolServer(ToolServer):
    url, token, closed = "http://127.0.0.1:1/mcp", "t", False

    def listen(self, requested: Callable[[ToolRequest], None], cancelled: Callable[[str], None]) -> None:
        pass

    def respond(self, response: ToolResponse) -> None:
        pass

    answer = respond

    async def close(self) -> None:
        self.closed = True


class ByMcp(SmallDriver):
    tools_by_mcp = True

    def info(self) -> DriverInfo:
        return replace(super().info(), mcp=Mcp(call_id_keys=("callId",)))


def spec_in(folder: Path, **fields: Any) -> SessionSpec:
    return SessionSpec(**{"program": sys.executable, "cwd": folder, "env": {"PATH": "/usr/bin:/bin"}, **fields})


async def opened(driver: TurnProcessDriver, spec: SessionSpec) -> Agent:
    return await driver.open(spec, Spawner(), LIMITS)


async def answer(agent: Agent, prompt: str) -> Sequence[OutputEvent]:
    return await ask(agent, prompt)  # type: ignore[arg-type]


async def test_each_turn_after_the_first_resumes_the_native_session(tmp_path: Path) -> None:
    driver = SmallDriver()
    agent = await opened(driver, spec_in(tmp_path))
    assert (agent.alive, agent.native_id) == (True, None)
    assert text_in(await answer(agent, "one")) == "one"
    assert (agent.alive, agent.native_id) == (True, "7")
    assert text_in(await answer(agent, "two")) == "7 two"
    await agent.close()
    assert not agent.alive
    with pytest.raises(AgentGone, match="the agent was closed"):
        await agent.prompt(Prompt("three"))
    again = await opened(driver, spec_in(tmp_path, seed=SessionSeed("7")))
    assert text_in(await answer(again, "three")) == "7 three"


async def test_a_history_is_for_the_first_turn_only(tmp_path: Path) -> None:
    driver = SmallDriver(seeds=True)
    agent = await opened(driver, spec_in(tmp_path, seed=SessionSeed(history=(UserMessage(content="before"),), system="be kind")))
    await answer(agent, "one")
    await answer(agent, "two")
    given = [(spec.seed.resume, len(spec.seed.history), spec.seed.system) for spec in driver.specs]
    assert given == [(None, 1, "be kind"), ("7", 0, "be kind")]


async def test_an_interrupted_turn_is_cancelled_and_the_next_one_resumes(tmp_path: Path) -> None:
    agent = await opened(SmallDriver(), spec_in(tmp_path))
    await agent.interrupt()
    await agent.prompt(Prompt("sleep"))
    events = list(await agent.receive())
    with pytest.raises(DriverError, match="a turn is under way"):
        await agent.prompt(Prompt("two"))
    assert not await agent.steer(Prompt("more"))
    await agent.interrupt(0.1)
    while events[-1].kind != "session_end":
        events += await agent.receive()
    end = end_of(events)
    assert (end.exit_code, end.stop_reason) == (130, "cancelled")
    assert text_in(await answer(agent, "two")) == "7 two"


@pytest.mark.parametrize(
    ("prompt", "facts", "exit_code", "alive"),
    [
        ("fail", {"seeds": True}, 1, True),
        ("fail", {"seeds": False}, 1, True),
        ("crash", {"seeds": True}, 3, False),
        ("crash", {"seeds": False}, 3, False),
    ],
)
async def test_a_turn_that_fails(tmp_path: Path, prompt: str, facts: Mapping[str, Any], exit_code: int, alive: bool) -> None:
    agent = await opened(SmallDriver(**facts), spec_in(tmp_path))
    end = end_of(await answer(agent, prompt))
    assert (end.exit_code, agent.alive, agent.native_id) == (exit_code, alive, "7")


@pytest.mark.parametrize("seeds", [True, False])
@pytest.mark.parametrize(("prompt", "message"), [("gone", "there is no such session"), ("refuse", "it was removed")])
async def test_a_turn_that_does_not_open_the_native_session_ends_the_agent(
    tmp_path: Path, prompt: str, message: str, seeds: bool
) -> None:
    agent = await opened(SmallDriver(seeds=seeds), spec_in(tmp_path))
    await answer(agent, "one")
    events = await answer(agent, prompt)
    assert [event.message for event in events if isinstance(event, Error)] == [message]
    assert (end_of(events).exit_code, agent.alive, agent.native_id) == (1, False, "7")


async def test_a_first_turn_that_opens_no_native_session_can_be_repeated(tmp_path: Path) -> None:
    agent = await opened(SmallDriver(), spec_in(tmp_path))
    for prompt in ("gone", "refuse"):
        assert end_of(await answer(agent, prompt)).stop_reason == "error"
    assert text_in(await answer(agent, "one")) == "one"


@pytest.mark.parametrize(("prompt", "exit_code"), [("call", 3), ("leave", 0)])
async def test_a_call_that_runs_when_the_process_exits_has_failed(tmp_path: Path, prompt: str, exit_code: int) -> None:
    agent = await opened(SmallDriver(), spec_in(tmp_path))
    events = await answer(agent, prompt)
    assert [(event.id, event.status) for event in events if isinstance(event, ToolCall)] == [("1", "started"), ("1", "failed")]
    assert end_of(events).exit_code == exit_code


@pytest.mark.parametrize("interrupted", [False, True])
async def test_a_call_that_runs_when_a_limit_of_time_ends_the_turn_has_failed(
    tmp_path: Path, clock: ManualClock, interrupted: bool
) -> None:
    agent = await SmallDriver().open(spec_in(tmp_path), Spawner(clock=clock), Limits(idle=20, grace=5))
    await agent.prompt(Prompt("hang"))
    events = list[OutputEvent]()
    while not any(isinstance(event, ToolCall) for event in events):
        events += await agent.receive()
    if interrupted:
        # A process that does not end by itself: its grace passes before the idle limit.
        await agent.interrupt()
    reading = asyncio.create_task(agent.receive())
    await clock.expire(5 if interrupted else 20)
    events += await reading
    assert [(event.id, event.status) for event in events if isinstance(event, ToolCall)] == [("1", "started"), ("1", "failed")]
    end, errors = end_of(events), [event.message for event in events if isinstance(event, Error)]
    assert (end.exit_code, end.stop_reason) == ((130, "cancelled") if interrupted else (124, "error"))
    assert errors == ([] if interrupted else ["the agent was stopped: it was silent for 20 s (limits.idle)"])


async def test_without_a_native_id_each_turn_is_to_be_seeded(tmp_path: Path) -> None:
    silent = "print('text hello')"
    agent = await opened(SmallDriver(silent, seeds=True), spec_in(tmp_path))
    assert text_in(await answer(agent, "one")) == "hello"
    assert not agent.alive
    forgetful = await opened(SmallDriver(silent), spec_in(tmp_path))
    await answer(forgetful, "one")
    assert forgetful.alive


async def test_a_program_that_cannot_start_fails_the_session_creation(tmp_path: Path) -> None:
    driver = SmallDriver(gone="8")
    with pytest.raises(ResumeFailed, match="Small has no session '8' any more"):
        await opened(driver, spec_in(tmp_path, seed=SessionSeed("8")))
    with pytest.raises(AgentUnavailable, match="does not report in time whether it has session 'slow'"):
        await opened(driver, spec_in(tmp_path, seed=SessionSeed("slow")))
    with pytest.raises(AgentUnavailable, match="cannot be given a history"):
        await opened(driver, spec_in(tmp_path, seed=SessionSeed(history=(UserMessage(content="before"),))))
    with pytest.raises(AgentUnavailable, match="the program 'no-such-program' is not there"):
        await opened(driver, spec_in(tmp_path, program="no-such-program"))
    with pytest.raises(AgentUnavailable, match="the working folder"):
        await opened(driver, spec_in(tmp_path / "nowhere"))


async def test_a_process_that_does_not_start_fails_the_turn(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    agent = await opened(SmallDriver(), spec_in(folder))
    folder.rmdir()
    events = await answer(agent, "one")
    assert [event.kind for event in events] == ["error", "session_end"]
    assert end_of(events).exit_code == 1
    with pytest.raises(AgentGone, match="no turn is under way"):
        await agent.receive()


class RunningProcesses:
    """The markers of the processes that have started and not ended."""

    def __init__(self) -> None:
        self.started_once, self.markers = asyncio.Event(), set[str]()

    async def started(self, marker: str, pid: int, created: float) -> None:
        self.markers.add(marker)
        self.started_once.set()
        await asyncio.sleep(0.05)

    async def ended(self, marker: str) -> None:
        self.markers.discard(marker)


async def test_an_agent_that_is_closed_while_its_process_starts_leaves_none(tmp_path: Path) -> None:
    processes = RunningProcesses()
    agent = await SmallDriver().open(spec_in(tmp_path), Spawner(ledger=processes), LIMITS)
    prompting = asyncio.create_task(agent.prompt(Prompt("sleep")))
    await processes.started_once.wait()
    await agent.close(0.0)
    with pytest.raises(AgentGone, match="closed while its process started"):
        await prompting
    assert not processes.markers


async def test_each_turn_has_a_server_of_the_application_side_tools(tmp_path: Path) -> None:
    servers: list[FakeToolServer] = []

    async def host(tools: Sequence[ToolSpec], call_id_keys: Sequence[str]) -> ToolServer:
        assert ([tool.name for tool in tools], call_id_keys) == (["look"], ("callId",))
        servers.append(FakeToolServer())
        return servers[-1]

    tools = (ToolSpec("look", "Looks.", {"type": "object"}),)
    driver = ByMcp(app_tools=True)
    agent = await opened(driver, spec_in(tmp_path, app_tools=tools, tool_host=host))
    await answer(agent, "one")
    await answer(agent, "two")
    assert [server.closed for server in servers] == [True, True]
    assert [spec.tool_server for spec in driver.specs] == servers
    alone = await opened(driver, spec_in(tmp_path, app_tools=tools))
    assert "there is no MCP server here" in (await answer(alone, "one"))[0].message  # type: ignore[union-attr]


async def test_a_task_is_a_turn_without_tools(tmp_path: Path) -> None:
    driver = SmallDriver()
    task = TaskSpec(sys.executable, tmp_path, {"PATH": "/usr/bin:/bin"}, options={"mood": "good"}, task="do it", model="m")
    agent = await driver.execute(task, Spawner(), LIMITS)
    events: list[OutputEvent] = []
    while not (events and events[-1].kind == "session_end"):
        events += await agent.receive()
    assert (text_in(events), end_of(events).exit_code) == ("do it", 0)
    (spec,) = driver.specs
    assert (spec.options, spec.tools) == ({"mood": "good", "model": "m"}, ())
