"""Invalid scenarios are rejected with the path of the error."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.agent_specs import Limits
from drivers.contract.errors import AgentUnavailable
from drivers.script.scenario_file import ScenarioError, check, load
from tests.drivers.script.script_runs import (
    Open,
    ask,
    end,
)
from tests.support.manual_clock import ManualClock


async def test_start_steps_can_reject_the_session(open_agent: Open) -> None:
    with pytest.raises(AgentUnavailable, match="not logged in"):
        await open_agent({"start": [{"stderr": "not logged in"}, {"exit": 1}], "turns": [{"steps": []}]})


async def test_start_steps_can_fail_themselves(open_agent: Open, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(AgentUnavailable, match="start: folder cannot be written: Is a directory"):
        await open_agent({"start": [{"write_file": {"path": "folder", "text": ""}}], "turns": [{"steps": []}]})


async def test_a_start_that_takes_too_long_is_ended(open_agent: Open, clock: ManualClock) -> None:
    starting = asyncio.create_task(open_agent({"start": [{"delay": 600}], "turns": [{"steps": []}]}, Limits(start=30)))
    await clock.expire(30)
    with pytest.raises(AgentUnavailable, match=r"limits\.start"):
        await starting


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.json", "cannot be read"),
        ("../outside.json", "outside the agent's working folder"),
        ("/etc/hostname", "outside the agent's working folder"),
        ("link.json", "outside the agent's working folder"),
        ("fifo", "not a regular file"),
        ("broken.json", r"not JSON: EOF while parsing a list at line 2"),
    ],
)
async def test_a_file_that_cannot_be_played(open_agent: Open, tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "broken.json").write_text('{"turns": [\n')
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link.json").symlink_to("/etc/hostname")
    with pytest.raises(AgentUnavailable, match=message):
        await open_agent(name)


def test_nothing_is_read_in_a_folder_that_has_become_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "scene.json").write_text('{"turns": [{"steps": []}]}')
    assert load(tmp_path / "folder", "scene.json")
    (tmp_path / "folder").rename(tmp_path / "other")
    (tmp_path / "folder").symlink_to("other")
    with pytest.raises(ScenarioError, match="outside the agent's working folder"):
        load(tmp_path / "folder", "scene.json")


async def test_a_task_with_a_bad_scenario_does_not_start(execute: Open) -> None:
    with pytest.raises(AgentUnavailable, match=r"scenario scenario\.json: turns\[0\]\.steps\[0\]\.txt: is not a step"):
        await execute([{"txt": "x"}])


async def test_a_pace_that_does_not_exist(open_agent: Open) -> None:
    with pytest.raises(AgentUnavailable, match="recorded, fast"):
        await open_agent(options={"pace": "warp"})


async def test_a_file_outside_of_the_folder_is_not_written(open_agent: Open, tmp_path: Path) -> None:
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
        (_first_step({"txt": "x"}), "turns[0].steps[0].txt: is not a step; possible are tool_call, app_tool"),
        (_first_step({"txt": "x"}), "stop; did you mean text?"),
        (_first_step({"text": {"chunk": 1}}), "turns[0].steps[0].text: needs text"),
        (
            _first_step({"text": {"text": "x", "chunks": 1}}),
            "text.chunks: no such key; known are text, chunk, every; did you mean chunk?",
        ),
        (_first_step({"text": {"txt": "x"}}), "turns[0].steps[0].text.txt: no such key"),
        (_first_step({"text": None}), "turns[0].steps[0].text: must be a text; it is null"),
        (_first_step({"text": "{promt}"}), "turns[0].steps[0].text: {promt} is not known; known are prompt"),
        (_first_step({"text": "{options.color}"}), "{options.color} is not known"),
        (_first_step({"text": "{n}"}), "{n} is not known"),
        (_first_step({"delay": "soon"}), 'turns[0].steps[0].delay: must be a number of seconds, 0 to 86400; it is "soon"'),
        (_first_step({"delay": True}), "a number of seconds"),
        (_first_step({"delay": -1}), "a number of seconds"),
        (_first_step({"argv": 1}), "argv: must be true; it is 1"),
        (_first_step({"usage": 1}), "usage: must be an object with input_tokens"),
        (_first_step({"usage": {"input_tokens": 1.5}}), "input_tokens: must be a whole number, 0 to"),
        (_first_step({"plan": "x"}), "turns[0].steps[0].plan: must be a list of objects with content, priority, status"),
        (_first_step({"plan": ["x"]}), "plan[0]: must be an object with content, priority, status"),
        (_first_step({"plan": [{"content": "x"}, {"status": "pending"}]}), "plan[1]: needs content"),
        (
            _first_step({"plan": {"entries": [{"content": "x", "status": "done"}]}}),
            "plan.entries[0].status: must be one of pending",
        ),
        (_first_step({"commands": [{"name": "/x"}]}), "commands[0].name: must be a command's name on one line, without the /"),
        (
            _first_step({"commands": [{"name": "x", "args": ""}]}),
            "commands[0].args: no such key; known are name, description, hint",
        ),
        (_first_step({"commands": [{"name": " "}]}), "commands[0].name: must be a command's name on one line"),
        (_first_step({"title": 1}), "title: must be a text; it is 1"),
        (_first_step({"tool_call": "lookup"}), "tool_call: must be an object with name"),
        (_first_step({"tool_call": {"name": "x", "input": []}}), "input: must be an object; it is a list of 0"),
        (_first_step({"tool_call": {"name": "x", "result": 1, "error": "y"}}), "has a result and an error"),
        (_first_step({"tool_call": {"name": "x", "result": 1, "client": {"read_file": "a"}}}), "has a result and a client"),
        (_first_step({"tool_call": {"name": "x", "client": {}}}), "client: needs read_file or write_file or terminal"),
        (_first_step({"tool_call": {"name": "x", "client": {"terminal": {"command": "x", "args": "y"}}}}), "a list of texts"),
        (_first_step({"tool_call": {"name": "x", "client": {"terminal": {"args": []}}}}), "client.terminal: needs command"),
        (_first_step({"tool_call": {"name": "x", "result": {"a": ["{y}"]}}}), "tool_call.result.a[0]: {y} is not known"),
        (
            _first_step({"tool_call": {"name": "x", "write_file": {"path": "../y", "text": ""}}}),
            "write_file.path: must be a path",
        ),
        (_first_step({"parallel": [{"delay": 1}]}), "parallel[0].delay: cannot be used here; possible are tool_call, app_tool"),
        (_first_step({"parallel": [{"app_tool": {"name": "x", "id": "i"}}] * 2}), "the id 'i' is there twice"),
        (_first_step({"line": "a\n"}), "line: must be a text without a line break"),
        (_first_step({"line": "a\nb"}), "line: must be a text without a line break"),
        (_first_step({"big_line": 31}), "big_line: must be a whole number, 32 to"),
        (_first_step({"exit": {"cod": 1}}), "exit.cod: no such key; known are code, signal; did you mean code?"),
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
def test_a_bad_scenario_is_rejected_with_the_path_of_the_error(scenario: Any, message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        check(scenario)
    assert message in str(refused.value)
