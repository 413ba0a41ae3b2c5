"""The script driver against its program: every step, every refusal, and the real process under the real runner."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from drivers.agent import CliAgent
from drivers.base import (
    AgentUnavailable,
    Limits,
    PermissionReply,
    Prompt,
    SessionSpec,
    TaskSpec,
    ToolGrant,
    ToolReply,
    ToolSpec,
)
from drivers.events import AgentToken, OutputEvent, SessionEnd
from drivers.messages import AssistantMessage, ImageBlock, TextBlock, UserMessage
from drivers.process import Spawner
from drivers.programs.script_format import ScenarioError, parse
from drivers.programs.script_steps import STEPS
from drivers.script import PROGRAM, ScriptDriver

ROOT = Path(__file__).parents[2]
SCENARIOS = sorted((ROOT / "tests" / "scenarios").glob("*.json"))
LIMITS = Limits(start=20, idle=20, total=40, grace=5)
WEATHER = ToolSpec("get_weather", "The weather.", {"type": "object"})
CLOCK = ToolSpec("get_time", "The time.", {"type": "object"})

Open = Callable[..., Awaitable[CliAgent]]


@pytest.fixture
async def open_agent(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens agents on a scenario (a dict, a list of steps, or a file's name) and closes them after the test."""
    opened: list[CliAgent] = []

    async def start(scenario: Any = None, limits: Limits = LIMITS, **fields: Any) -> CliAgent:
        spec = SessionSpec(
            sys.executable, tmp_path, fields.pop("env", {}), options=_options(tmp_path, scenario, fields), **fields
        )
        agent = await ScriptDriver().open(spec, Spawner(), limits)
        assert isinstance(agent, CliAgent)
        opened.append(agent)
        return agent

    yield start
    for agent in opened:
        await agent.close()


@pytest.fixture
async def execute(tmp_path: Path) -> AsyncIterator[Open]:
    """Starts one-shot tasks on a scenario."""
    opened: list[CliAgent] = []

    async def start(scenario: Any, task: str = "do it", limits: Limits = LIMITS, **fields: Any) -> CliAgent:
        spec = TaskSpec(sys.executable, tmp_path, {}, options=_options(tmp_path, scenario, fields), task=task, **fields)
        agent = await ScriptDriver().execute(spec, Spawner(), limits)
        assert isinstance(agent, CliAgent)
        opened.append(agent)
        return agent

    yield start
    for agent in opened:
        await agent.close()


def _options(folder: Path, scenario: Any, fields: dict[str, Any]) -> dict[str, str]:
    options = dict(fields.pop("options", {}))
    if isinstance(scenario, list):
        scenario = {"turns": [{"steps": scenario}]}
    if isinstance(scenario, dict):
        (folder / "scenario.json").write_text(json.dumps(scenario))
        scenario = "scenario.json"
    return options | ({"scenario": scenario} if scenario else {})


async def to_end(agent: CliAgent) -> list[OutputEvent]:
    events: list[OutputEvent] = []
    while not (events and events[-1].kind == "session_end"):
        events += await asyncio.wait_for(agent.receive(), 30)
    return events


async def until(agent: CliAgent, kind: str) -> list[OutputEvent]:
    events: list[OutputEvent] = []
    while not any(event.kind == kind for event in events):
        events += await asyncio.wait_for(agent.receive(), 30)
    return events


async def ask(agent: CliAgent, text: str = "hello") -> list[OutputEvent]:
    await agent.prompt(Prompt(text))
    return await to_end(agent)


def said(events: Sequence[OutputEvent], kind: str = "agent_token") -> str:
    return "".join(event.text for event in events if event.kind == kind)  # type: ignore[union-attr]


def plain(events: Sequence[OutputEvent]) -> list[dict[str, Any]]:
    """The events as JSON, without the announcement of the session and the time that the run took."""
    shown = [json.loads(event.encode()) for event in events if event.kind != "native_session"]
    for event in shown:
        event.pop("duration_ms", None)
    return shown


def end(events: Sequence[OutputEvent]) -> tuple[int, str]:
    assert isinstance(events[-1], SessionEnd)
    return events[-1].exit_code, events[-1].stop_reason


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


# What the agent says


async def test_without_a_scenario_it_says_the_prompt_back(open_agent: Open) -> None:
    agent = await open_agent(options={"pace": "fast"})
    events = await ask(agent, "a prompt of mine")
    assert "a prompt of mine" in said(events)
    assert {"native_session", "thinking", "agent_token", "usage", "session_end"} == {event.kind for event in events}
    assert end(events) == (0, "end_turn")


async def test_text_is_streamed_in_deltas_of_the_chunk(open_agent: Open) -> None:
    events = await ask(await open_agent([{"text": {"text": "abcdefgh", "chunk": 3}}, {"thinking": "hm"}]))
    assert [event.text for event in events if isinstance(event, AgentToken)] == ["abc", "def", "gh"]
    assert said(events, "thinking") == "hm"


async def test_simple_steps_are_events(open_agent: Open) -> None:
    steps = [
        {"message_end": {"discarded": True}},
        {"usage": {"input_tokens": 3, "cache_read": 2}},
        {"hook": {"name": "PreCommit", "id": "h"}},
    ]
    events = plain(await ask(await open_agent(steps)))
    assert events == [
        {"kind": "message_end", "discarded": True},
        {"kind": "usage", "input_tokens": 3, "output_tokens": 0, "cache_read": 2, "cache_write": 0},
        {"kind": "hook", "id": "h", "name": "PreCommit", "status": "completed"},
        {"kind": "session_end", "exit_code": 0, "stop_reason": "end_turn"},
    ]


async def test_placeholders_are_filled_in(open_agent: Open) -> None:
    text = '{prompt}|{turn}|{images}|{system}|{model}|{options.token}|{last_result}|{results.x}|{{prompt}}|{{|{"a": {}}'
    scenario = {"model": "paper-1", "turns": [{"steps": [{"text": text}]}]}
    agent = await open_agent(scenario, system="Be kind.", options={"token": "s3cret"})
    await agent.prompt(
        Prompt((TextBlock(text="hi"), ImageBlock(url="https://x/y.png"), ImageBlock(url="data:image/png;base64,AA")))
    )
    assert said(await to_end(agent)) == 'hi|1|2|Be kind.|paper-1|s3cret|||{prompt}|{|{"a": {}}'


async def test_the_model_is_announced(open_agent: Open) -> None:
    events = await ask(await open_agent({"model": "paper-1", "turns": [{"steps": []}]}))
    assert json.loads(events[0].encode())["model"] == "paper-1"


async def test_remember_says_the_history_and_the_session(open_agent: Open) -> None:
    history = (UserMessage(content="one"), AssistantMessage(content="1"), UserMessage(content=(TextBlock(text="two"),)))
    agent = await open_agent([{"remember": True}], history=history)
    await ask(agent, "three")
    assert json.loads(said(await ask(agent, "four"))) == ["one", "two", "three"]


async def test_its_environment_is_what_the_spec_says(open_agent: Open) -> None:
    steps = [{"env": "GREETING"}, {"text": "\n"}, {"env": "HOME"}, {"text": "\n"}, {"env": "*"}]
    agent = await open_agent(steps, env={"GREETING": "ahoy"})
    greeting, home, names = said(await ask(agent)).split("\n")
    assert (greeting, home) == ("GREETING=ahoy", "HOME is not set")
    assert {"GREETING", "PORTICO_AGENT_ID"} <= set(names.split()) <= {"GREETING", "PORTICO_AGENT_ID", "LC_CTYPE"}


@pytest.mark.parametrize(("stop", "exit_code"), [("end_turn", 0), ("max_tokens", 0), ("refusal", 0), ("error", 1)])
async def test_stop_ends_the_turn_with_its_reason(open_agent: Open, stop: str, exit_code: int) -> None:
    events = await ask(await open_agent([{"stop": stop}]))
    assert end(events) == (exit_code, stop)
    assert ("error" in {event.kind for event in events}) == (stop == "error")


async def test_an_error_says_its_message_and_the_session_goes_on(open_agent: Open) -> None:
    agent = await open_agent({"turns": [{"steps": [{"stop": {"reason": "error", "message": "no {prompt}"}}]}, {"steps": []}]})
    events = plain(await ask(agent, "luck"))
    assert events[0] == {"kind": "error", "message": "no luck"}
    assert end(await ask(agent)) == (0, "end_turn")


# Which turn


TURNS = {
    "turns": [
        {"when": "(?i)weather", "steps": [{"text": "rain"}]},
        {"steps": [{"text": "first"}]},
        {"steps": [{"text": "second"}]},
    ]
}


async def test_turns_match_or_go_in_order_and_the_last_repeats(open_agent: Open) -> None:
    agent = await open_agent(TURNS)
    prompts = ["Weather?", "a", "the weather", "b", "c"]
    assert [said(await ask(agent, prompt)) for prompt in prompts] == ["rain", "first", "rain", "second", "second"]


async def test_a_restart_goes_on_where_it_was(open_agent: Open) -> None:
    history = (UserMessage(content="weather"), AssistantMessage(content="rain"), UserMessage(content="a"))
    assert said(await ask(await open_agent(TURNS, history=history))) == "second"
    assert said(await ask(await open_agent(TURNS, history=history[:2]))) == "first"


async def test_a_prompt_without_a_turn_is_an_error(open_agent: Open) -> None:
    events = await ask(await open_agent({"turns": [{"when": "x", "steps": []}]}))
    assert end(events) == (1, "error")


# Tools


async def test_a_trusted_tool_runs_inline(open_agent: Open) -> None:
    steps = [{"tool_call": {"id": "c", "name": "lookup", "input": {"query": "{prompt}"}, "result": [1, "{prompt}"]}}]
    events = plain(await ask(await open_agent(steps, tools=(ToolGrant("lookup", trust=True),))))
    assert events[:-1] == [
        {"kind": "tool_call", "id": "c", "name": "lookup", "status": "started", "input": {"query": "hello"}},
        {"kind": "tool_result", "tool_call_id": "c", "output": [1, "hello"], "is_error": False},
        {"kind": "tool_call", "id": "c", "name": "lookup", "status": "completed"},
    ]


async def test_a_tool_that_is_not_enabled_does_not_run(open_agent: Open, tmp_path: Path) -> None:
    steps = [{"tool_call": {"name": "shell", "write_file": {"path": "ran", "text": ""}}}, {"text": "{last_result}"}]
    events = await ask(await open_agent(steps, tools=(ToolGrant("lookup", trust=True),)))
    assert said(events) == "The tool shell is not enabled in this session."
    assert [event["status"] for event in plain(events) if event["kind"] == "tool_call"] == ["started", "failed"]
    assert not (tmp_path / "ran").exists()


async def test_a_tool_that_fails(open_agent: Open) -> None:
    events = plain(await ask(await open_agent([{"tool_call": {"id": "c", "name": "Private", "error": "disk full"}}])))
    assert events[1] == {"kind": "tool_result", "tool_call_id": "c", "output": "disk full", "is_error": True}
    assert events[2]["status"] == "failed"


@pytest.mark.parametrize(
    ("granted", "reason", "output", "status"),
    [
        (True, None, "written", "completed"),
        (False, "not today", "Tool call denied: not today", "failed"),
        (False, None, "Tool call denied", "failed"),
    ],
)
async def test_an_untrusted_tool_asks(
    open_agent: Open, tmp_path: Path, granted: bool, reason: str | None, output: str, status: str
) -> None:
    call = {"id": "c", "name": "write_note", "result": "written", "write_file": {"path": "a/note", "text": "{prompt}"}}
    agent = await open_agent([{"tool_call": call}, {"text": "{last_result}"}], tools=(ToolGrant("write_note"),))
    await agent.prompt(Prompt("hello"))
    events = plain(await until(agent, "awaiting"))
    assert events[-1] == {"kind": "awaiting", "calls": [{"id": "c", "wants": "permission"}]}
    assert not (tmp_path / "a").exists()
    await agent.reply(PermissionReply("c", granted, reason))
    rest = await to_end(agent)
    assert said(rest) == output
    assert [event["status"] for event in plain(rest) if event["kind"] == "tool_call"] == [status]
    assert (tmp_path / "a" / "note").exists() == granted


async def test_ask_asks_for_a_trusted_tool_too(open_agent: Open) -> None:
    agent = await open_agent([{"tool_call": {"id": "c", "name": "shell", "ask": True}}], tools=(ToolGrant("shell", trust=True),))
    await agent.prompt(Prompt("hello"))
    await until(agent, "awaiting")
    await agent.reply(PermissionReply("c", True))
    assert end(await to_end(agent)) == (0, "end_turn")


async def test_an_application_side_tool_waits_for_its_result(open_agent: Open) -> None:
    agent = await open_agent([{"app_tool": {"id": "c", "name": "get_weather"}}, {"text": "{results.c}"}], app_tools=(WEATHER,))
    await agent.prompt(Prompt("hello"))
    await until(agent, "awaiting")
    await agent.reply(ToolReply("c", (TextBlock(text="18°"), ImageBlock(url="https://x/y.png"))))
    events = await to_end(agent)
    assert said(events) == "18°"
    assert "tool_result" not in {event.kind for event in events}


async def test_an_application_side_tool_that_is_not_offered_fails(open_agent: Open) -> None:
    events = await ask(await open_agent([{"app_tool": {"name": "get_time"}}, {"text": "{last_result}"}], app_tools=(WEATHER,)))
    assert said(events) == "The application does not offer a tool get_time."


@pytest.mark.parametrize("order", [("weather", "clock", "note"), ("note", "clock", "weather")])
async def test_parallel_calls_of_every_kind(open_agent: Open, tmp_path: Path, order: Sequence[str]) -> None:
    (tmp_path / "tools.json").write_bytes((ROOT / "tests/scenarios/tools.json").read_bytes())
    tools = (ToolGrant("lookup", trust=True), ToolGrant("write_note"))
    agent = await open_agent("tools.json", tools=tools, app_tools=(WEATHER, CLOCK))
    await agent.prompt(Prompt("hello"))
    events = plain(await until(agent, "awaiting"))
    kinds = [event.get("status", event["kind"]) for event in events]
    assert kinds == ["agent_token", "started", "started", "started", "started", "tool_result", "completed", "awaiting"]
    wants = [("weather", "result"), ("clock", "result"), ("note", "permission")]
    assert [(call["id"], call["wants"]) for call in events[-1]["calls"]] == wants
    for call in order:
        await agent.reply(PermissionReply(call, True) if call == "note" else ToolReply(call, f"<{call}>"))
    rest = await to_end(agent)
    assert said(rest) == 'The weather: <weather>. The time: <clock>. The note: {"written": 5}.'
    assert [e["id"] for e in plain(rest) if e["kind"] == "tool_call"] == ["weather", "clock", "note"]
    assert (tmp_path / "notes" / "tokyo.md").read_text() == "Tokyo"


async def test_ids_are_new_in_every_turn_and_after_a_restart(open_agent: Open) -> None:
    scenario = [{"parallel": [{"tool_call": {"name": "A"}}, {"tool_call": {"name": "B"}}]}]
    agent = await open_agent(scenario)
    again = await open_agent(scenario, history=(UserMessage(content="1"), UserMessage(content="2")))
    runs = [await ask(agent), await ask(agent), await ask(again)]
    ids = [event["id"] for run in runs for event in plain(run) if event.get("status") == "started"]
    assert len(set(ids)) == 6


async def test_a_subagent_is_the_parent_of_its_calls(open_agent: Open) -> None:
    steps = [{"subagent": {"id": "s", "label": "reads", "steps": [{"tool_call": {"id": "c", "name": "Read"}}]}}]
    events = plain(await ask(await open_agent(steps)))
    assert [(event["kind"], event.get("status"), event.get("parent_id")) for event in events[:-1]] == [
        ("subagent", "started", None),
        ("tool_call", "started", "s"),
        ("tool_result", None, None),
        ("tool_call", "completed", "s"),
        ("subagent", "completed", None),
    ]


# Interrupts, delays and ends


async def test_an_interrupt_ends_a_delay_at_once_and_the_next_prompt_works(open_agent: Open) -> None:
    agent = await open_agent({"turns": [{"steps": [{"text": "a"}, {"delay": 600}]}, {"steps": [{"text": "b"}]}]})
    await agent.prompt(Prompt("hello"))
    await until(agent, "agent_token")
    before = time.monotonic()
    await agent.interrupt()
    assert end(await to_end(agent)) == (130, "cancelled")
    assert time.monotonic() - before < 1
    assert said(await ask(agent)) == "b"


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


async def test_an_agent_that_ignores_the_interrupt_is_ended(open_agent: Open) -> None:
    agent = await open_agent([{"message_end": True}, {"hang": {"ignore_interrupt": True}}], Limits(grace=0.3))
    await agent.prompt(Prompt("hello"))
    await until(agent, "message_end")
    await agent.interrupt()
    assert end(await to_end(agent)) == (130, "cancelled")
    assert not agent.alive


async def test_an_agent_that_ignores_everything_is_killed(open_agent: Open) -> None:
    agent = await open_agent([{"message_end": True}, {"hang": {"ignore_term": True}}], Limits(grace=0.2))
    await agent.prompt(Prompt("hello"))
    await until(agent, "message_end")
    await agent.close()
    assert not alive(agent.pid)


async def test_end_of_input_ends_it_within_a_delay(open_agent: Open) -> None:
    agent = await open_agent([{"message_end": True}, {"delay": 600}], Limits(grace=20))
    await agent.prompt(Prompt("hello"))
    await until(agent, "message_end")
    before = time.monotonic()
    await agent.close()
    assert time.monotonic() - before < 5


async def test_fast_skips_delays(open_agent: Open) -> None:
    steps = [{"delay": 600}, {"text": {"text": "abc", "chunk": 1, "every": 600}}, {"tool_call": {"name": "X", "takes": 600}}]
    assert said(await ask(await open_agent(steps, options={"pace": "fast"}))) == "abc"


async def test_recorded_keeps_delays(open_agent: Open) -> None:
    events = await ask(await open_agent([{"delay": 0.3}]))
    assert isinstance(events[-1], SessionEnd) and events[-1].duration_ms >= 300


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
async def test_a_grandchild_is_gone_after_close(open_agent: Open, tmp_path: Path, new_session: bool, hold_stdout: bool) -> None:
    spawn = {"seconds": 600, "new_session": new_session, "hold_stdout": hold_stdout, "pid_file": "pid"}
    agent = await open_agent([{"spawn": spawn}])
    assert end(await ask(agent)) == (0, "end_turn")
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    await agent.close()
    assert not alive(pid)


async def test_a_grandchild_that_holds_stdout_does_not_hold_the_run(open_agent: Open, tmp_path: Path) -> None:
    spawn = {"seconds": 600, "new_session": True, "hold_stdout": True, "pid_file": "pid"}
    events = await ask(await open_agent([{"spawn": spawn}, {"exit": 4}]))
    assert end(events) == (4, "error")
    assert not alive(int((tmp_path / "pid").read_text()))


# Sizes


@pytest.mark.parametrize("size", [32, 100_000, 20_000_000, 60_000_000])
async def test_a_big_line_arrives_whole(open_agent: Open, size: int) -> None:
    events = await ask(await open_agent([{"big_line": size}, {"message_end": True}]))
    assert len(said(events)) == size - len('{"kind":"agent_token","text":""}')
    assert end(events) == (0, "end_turn")


async def test_ten_thousand_events_arrive_in_order(open_agent: Open) -> None:
    events = await ask(await open_agent([{"events": {"count": 10_000, "text": "{n}:{prompt};"}}]), '"')
    tokens = [event.text for event in events if isinstance(event, AgentToken)]
    assert tokens == [f'{number}:";' for number in range(10_000)]


async def test_events_without_a_number(open_agent: Open) -> None:
    events = await ask(await open_agent([{"events": {"count": 5000, "text": "é"}}]))
    assert said(events) == "é" * 5000


async def test_a_prompt_of_a_megabyte_comes_back(open_agent: Open) -> None:
    prompt = "-é\n" * 350_000
    assert said(await ask(await open_agent([{"text": {"text": "{prompt}", "chunk": 100_000}}]), prompt)) == prompt


async def test_images_of_several_megabytes(open_agent: Open) -> None:
    agent = await open_agent([{"text": "{images}"}])
    image = ImageBlock(url="data:image/png;base64," + "A" * 8_000_000)
    await agent.prompt(Prompt((TextBlock(text="look"), image, image)))
    assert said(await to_end(agent)) == "2"


async def test_lines_that_are_not_events_are_stdout(open_agent: Open) -> None:
    events = plain(await ask(await open_agent([{"line": "npm {WARN: {prompt}"}, {"text": "x"}])))
    assert events[0] == {"kind": "stdout", "line": "npm {WARN: hello"}


async def test_nothing_of_prompt_or_secret_in_the_command_line(open_agent: Open) -> None:
    agent = await open_agent([{"argv": True}, {"delay": 600}], options={"token": "s3cret"}, system="sys")
    await agent.prompt(Prompt("-p the prompt"))
    await until(agent, "agent_token")
    line = psutil.Process(agent.pid).cmdline()
    assert line == [sys.executable, "-I", "-S", str(PROGRAM)]
    assert "s3cret" not in str(psutil.Process(agent.pid).environ())


async def test_a_prompt_that_starts_with_a_dash(open_agent: Open, execute: Open) -> None:
    assert said(await ask(await open_agent([{"text": "{prompt}"}]), "--task -x")) == "--task -x"
    assert said(await to_end(await execute([{"text": "{prompt}"}], "--help"))) == "--help"


# Tasks


async def test_a_task_plays_one_turn(execute: Open) -> None:
    steps = [{"tool_call": {"name": "lookup", "result": "x"}}, {"text": "{prompt} {model} {last_result}"}]
    events = await to_end(await execute(steps, "go", model="paper-2"))
    assert said(events) == "go paper-2 x"
    assert end(events) == (0, "end_turn")


async def test_a_task_ends_with_the_exit_code_of_its_turn(execute: Open) -> None:
    events = await to_end(await execute([{"stderr": "why"}, {"stop": {"reason": "error", "message": "no"}}]))
    assert end(events) == (1, "error")
    assert [event["kind"] for event in plain(events)] == ["error", "stderr", "session_end"]


async def test_a_task_has_nobody_to_ask(execute: Open, tmp_path: Path) -> None:
    steps = [{"tool_call": {"name": "shell", "ask": True}}, {"app_tool": {"name": "x"}}, {"text": "done"}]
    events = await to_end(await execute(steps))
    assert [event["status"] for event in plain(events) if event["kind"] == "tool_call"] == ["started", "failed"] * 2
    assert said(events) == "done"


async def test_a_task_delays_and_hangs_after_the_end_of_its_input(execute: Open) -> None:
    assert said(await to_end(await execute([{"delay": 0.1}, {"text": "x"}]))) == "x"
    agent = await execute([{"message_end": True}, {"hang": True}], limits=Limits(grace=0.3))
    await until(agent, "message_end")
    await agent.interrupt()
    assert end(await to_end(agent))[1] == "cancelled"


async def test_a_task_of_a_megabyte(execute: Open) -> None:
    task = "x" * 1_000_000
    assert said(await to_end(await execute([{"text": {"text": "{prompt}", "chunk": 500_000}}], task))) == task


# Starts and refusals


async def test_start_steps_can_refuse_the_session(open_agent: Open) -> None:
    with pytest.raises(AgentUnavailable, match="not logged in"):
        await open_agent({"start": [{"stderr": "not logged in"}, {"exit": 1}], "turns": [{"steps": []}]})


async def test_start_steps_can_fail_themselves(open_agent: Open, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(AgentUnavailable, match="start: folder cannot be written: Is a directory"):
        await open_agent({"start": [{"write_file": {"path": "folder", "text": ""}}], "turns": [{"steps": []}]})


async def test_a_start_that_takes_too_long_is_given_up(open_agent: Open) -> None:
    with pytest.raises(AgentUnavailable, match=r"limits\.start"):
        await open_agent({"start": [{"delay": 600}], "turns": [{"steps": []}]}, Limits(start=0.3))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.json", "cannot be read"),
        ("../outside.json", "outside the agent's working folder"),
        ("/etc/hostname", "outside the agent's working folder"),
        ("link.json", "outside the agent's working folder"),
        ("broken.json", r"not JSON: line 2, column 1"),
    ],
)
async def test_a_file_that_cannot_be_played(open_agent: Open, tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "broken.json").write_text('{"turns": [\n')
    (tmp_path / "link.json").symlink_to("/etc/hostname")
    with pytest.raises(AgentUnavailable, match=message):
        await open_agent(name)


async def test_a_task_with_a_bad_scenario_says_so(execute: Open) -> None:
    events = plain(await to_end(await execute([{"txt": "x"}])))
    assert events[0]["kind"] == "stderr" and "turns[0].steps[0].txt: is not a step" in events[0]["line"]
    assert events[-1]["exit_code"] == 2


async def test_a_pace_that_does_not_exist(open_agent: Open) -> None:
    with pytest.raises(AgentUnavailable, match="recorded, fast"):
        await open_agent(options={"pace": "warp"})


async def test_a_file_is_never_written_outside(open_agent: Open, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path.parent)
    events = await ask(await open_agent([{"write_file": {"path": "out/stray.txt", "text": ""}}]))
    assert end(events) == (1, "error")
    assert not (tmp_path.parent / "stray.txt").exists()


def _first_step(step: Any) -> Any:
    return {"turns": [{"steps": [step]}]}


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ([], "the scenario: must be an object with turns"),
        ({}, "the scenario: needs turns"),
        ({"turns": []}, "turns: must be a list of at least one turn; it is a list of 0"),
        ({"turns": [{"steps": []}], "turn": 1}, "the scenario.turn: no such key; known are turns, start, model, comment"),
        ({"turns": [{}]}, "turns[0]: needs steps"),
        ({"turns": [{"when": "(", "steps": []}]}, "turns[0].when: not a regular expression"),
        ({"turns": [{"when": 1, "steps": []}]}, "turns[0].when: must be a text that is not empty; it is 1"),
        ({"turns": [{"steps": {}}]}, "turns[0].steps: must be a list of steps; it is an object with no keys"),
        ({"turns": [{"steps": []}], "start": [{"text": "x"}]}, "start[0].text: cannot be used here; possible are delay"),
        (_first_step("x"), "turns[0].steps[0]: must be an object with one key"),
        (_first_step({"text": "x", "chunk": 1}), "turns[0].steps[0]: must be an object with one key"),
        (_first_step({"txt": "x"}), "turns[0].steps[0].txt: is not a step; possible are text, thinking"),
        (_first_step({"text": {"chunk": 1}}), "turns[0].steps[0].text: needs text"),
        (_first_step({"text": {"text": "x", "chunks": 1}}), "text.chunks: no such key; known are text, chunk, every"),
        (_first_step({"text": "{promt}"}), "turns[0].steps[0].text: {promt} is not known; known are prompt"),
        (_first_step({"text": "{options.color}"}), "{options.color} is not known"),
        (_first_step({"text": "{n}"}), "{n} is not known"),
        (_first_step({"delay": "soon"}), 'turns[0].steps[0].delay: must be a number of seconds, 0 to 86400; it is "soon"'),
        (_first_step({"delay": True}), "a number of seconds"),
        (_first_step({"delay": -1}), "a number of seconds"),
        (_first_step({"argv": 1}), "argv: must be true; it is 1"),
        (_first_step({"usage": 1}), "usage: must be an object with input_tokens"),
        (_first_step({"usage": {"input_tokens": 1.5}}), "input_tokens: must be a whole number, 0 to"),
        (_first_step({"tool_call": "lookup"}), "tool_call: must be an object with name"),
        (_first_step({"tool_call": {"name": "x", "input": []}}), "input: must be an object; it is a list of 0"),
        (_first_step({"tool_call": {"name": "x", "result": 1, "error": "y"}}), "has a result and an error"),
        (_first_step({"tool_call": {"name": "x", "result": {"a": ["{y}"]}}}), "tool_call.result.a[0]: {y} is not known"),
        (
            _first_step({"tool_call": {"name": "x", "write_file": {"path": "../y", "text": ""}}}),
            "write_file.path: must be a path",
        ),
        (_first_step({"parallel": [{"delay": 1}]}), "parallel[0].delay: cannot be used here; possible are tool_call, app_tool"),
        (_first_step({"parallel": [{"app_tool": {"name": "x", "id": "i"}}] * 2}), "the id 'i' is there twice"),
        (_first_step({"line": "a\nb"}), "line: must be a text without a line break"),
        (_first_step({"big_line": 31}), "big_line: must be a whole number, 32 to"),
        (_first_step({"exit": {}}), "exit: needs code or signal"),
        (_first_step({"exit": {"code": 1, "signal": "SIGKILL"}}), "exit: needs code or signal"),
        (_first_step({"exit": 256}), "exit: must be a whole number, 0 to 255; it is 256"),
        (_first_step({"hang": False}), "hang: must be an object with ignore_interrupt"),
        (_first_step({"write_file": {"path": "/etc/x", "text": ""}}), "a path in the agent's working folder"),
        (_first_step({"stop": "done"}), "stop: must be one of end_turn, max_tokens, refusal, error"),
        (_first_step({"stop": {"reason": "refusal", "message": "x"}}), "stop.message: only goes with the reason error"),
        (_first_step({"stop": {"reason": []}}), "stop.reason: must be one of"),
        ({"turns": [{"steps": [{"exit": 1}, {"text": "x"}]}]}, "turns[0].steps[1]: is never played, because exit before it"),
    ],
)
def test_a_bad_scenario_is_refused_with_its_place(scenario: Any, message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        parse(scenario)
    assert message in str(refused.value)


# The documentation


def test_every_step_is_documented() -> None:
    text = (ROOT / "docs" / "script-driver.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \| (?:\*\*)?(?:`|\|| )", text, re.MULTILINE)) >= set(STEPS)


def test_the_examples_of_the_documentation_load_and_are_those_files() -> None:
    text = (ROOT / "docs" / "script-driver.md").read_text()
    blocks = re.findall(r"(?:<!-- (\S+) -->\n)?```json\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 4
    for name, block in blocks:
        parse(json.loads(block))
        assert not name or (ROOT / name).read_text() == block


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_scenarios_load(path: Path) -> None:
    parse(json.loads(path.read_text()))


async def test_the_chat_example(open_agent: Open, tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_bytes((ROOT / "tests/scenarios/chat.json").read_bytes())
    agent = await open_agent("chat.json", options={"pace": "fast"})
    assert said(await ask(agent, "Hi")) == "Hello! You said: Hi\n\nWhat shall we **build** today?"
    assert said(await ask(agent, "a picture")) == "I got 0 picture(s), and you wrote: a picture"
    assert said(await ask(agent, "Bye")) == 'This is answer 3. Before that you said: ["Hi", "a picture"]'


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("long", (0, "max_tokens")),
        ("bad", (0, "refusal")),
        ("limit", (1, "error")),
        ("crash", (-11, "error")),
        ("noise", (0, "end_turn")),
        ("?", (0, "end_turn")),
    ],
)
async def test_the_trouble_example(open_agent: Open, tmp_path: Path, prompt: str, expected: tuple[int, str]) -> None:
    (tmp_path / "trouble.json").write_bytes((ROOT / "tests/scenarios/trouble.json").read_bytes())
    assert end(await ask(await open_agent("trouble.json"), prompt)) == expected


def test_requests_by_hand(tmp_path: Path) -> None:
    requests = '{"type":"open","options":{"pace":"fast"}}\n{"type":"prompt","content":"Hi"}\n'
    done = subprocess.run([sys.executable, "-I", "-S", str(PROGRAM), "--task"], input=requests, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert "You said: Hi" in "".join(line["text"] for line in lines if line["kind"] == "agent_token")
