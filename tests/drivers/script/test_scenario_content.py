"""A scenario in the option itself, which a client may have written: what it plays, and what only a file may have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.errors import AgentUnavailable
from drivers.script import ScriptDriver
from drivers.script.scenario_file import FOR_FILES, ScenarioError, read
from drivers.script.schema import StartStep, Step, ToolCall
from tests.drivers.script.script_runs import Open, ask, text_in, to_end

# What a client may have: it is no more than the agent's own output and end. Whoever adds a step decides where it belongs.
HARMLESS = {
    "text", "thinking", "message_end", "compact", "usage", "plan", "commands", "title", "remember", "stop", "tool_call",
    "app_tool", "parallel", "subagent", "hook", "delay", "stderr", "exit", "hang",
}  # fmt: skip
VALUES: dict[str, Any] = {
    "write_file": {"path": "a", "text": "b"}, "wait_for_file": "a", "spawn": 1, "env": "*", "argv": True, "line": "{}",
    "big_line": 100, "events": 10, "client": {"read_file": "a"},
}  # fmt: skip


def content(*steps: Any, **fields: Any) -> str:
    return json.dumps({"turns": [{"steps": steps}], **fields})


async def test_it_is_played_in_a_session_and_in_a_task(open_agent: Open, execute: Open) -> None:
    scenario = "\n " + content(
        {"text": "You said: {prompt}"}, {"tool_call": {"name": "X", "input": {"env": "*"}, "result": {"client": 1}}}
    )
    assert text_in(await ask(await open_agent(options={"scenario": scenario}), "hi")) == "You said: hi"
    assert "You said: " in text_in(await to_end(await execute(scenario)))


async def test_it_does_not_get_the_secret_of_the_configuration(open_agent: Open) -> None:
    options = {"scenario": content({"text": "<{options.token}> <{options.pace}>"}), "token": "tok-1234", "pace": "fast"}
    assert text_in(await ask(await open_agent(options=options))) == "<> <fast>"


def test_every_step_is_for_clients_or_for_files_only() -> None:
    steps, of_calls = {*Step.__annotations__}, {*ToolCall.__annotations__}
    assert not HARMLESS & FOR_FILES
    assert {*VALUES} == FOR_FILES
    assert steps | (FOR_FILES & of_calls) == HARMLESS | FOR_FILES


@pytest.mark.parametrize("name", sorted(FOR_FILES))
def test_what_only_a_file_may_have_is_refused(name: str) -> None:
    step = {name: VALUES[name]}
    places = {}
    if name in Step.__annotations__:
        places |= {f"turns[0].steps[1].{name}": content({"text": "a"}, step)}
    if name in StartStep.__annotations__:
        places |= {f"start[0].{name}": content({"text": "a"}, start=[step])}
    if name == "wait_for_file":
        places |= {f"turns[0].steps[0].subagent.steps[0].{name}": content({"subagent": {"label": "x", "steps": [step]}})}
    if name in ToolCall.__annotations__:
        call = {"tool_call": {"name": "X", **step}}
        places |= {f"turns[0].steps[0].tool_call.{name}": content(call)}
        places |= {f"turns[0].steps[0].parallel.calls[0].tool_call.{name}": content({"parallel": [call]})}
    assert places
    for place, scenario in places.items():
        with pytest.raises(ScenarioError) as refused:
            read(scenario)
        assert str(refused.value).startswith(f"scenario: {place}: is possible in a scenario file only")
        assert ScriptDriver().options_problem({"scenario": scenario}) == str(refused.value)


@pytest.mark.parametrize(
    ("scenario", "problem"),
    [
        ('{"turns": [', "scenario: not JSON"),
        ('{"turn": []}', "scenario: the scenario.turn: no such key; known are turns, "),
        (content({"txt": "a"}), "scenario: turns[0].steps[0].txt: is not a step"),
    ],
)
async def test_what_is_wrong_is_said_before_it_is_played(open_agent: Open, scenario: str, problem: str) -> None:
    assert (ScriptDriver().options_problem({"scenario": scenario}) or "").startswith(problem)
    with pytest.raises(AgentUnavailable) as refused:
        await open_agent(options={"scenario": scenario})
    assert str(refused.value).startswith(problem)


def test_names_of_files_are_not_looked_at(tmp_path: Path) -> None:
    assert ScriptDriver().options_problem({"scenario": str(tmp_path / "missing.json"), "pace": "fast"}) is None
    assert ScriptDriver().options_problem({}) is None
