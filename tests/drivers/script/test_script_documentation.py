"""The documentation of the script driver and its examples."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from drivers.script.program.steps import STEPS
from drivers.script.scenario_file import check
from tests.drivers.script.script_runs import (
    ROOT,
    SCENARIOS,
    Open,
    ask,
    end,
    text_in,
)

SCHEMA = Draft202012Validator(json.loads((ROOT / "docs" / "scenario.schema.json").read_text()))


def test_every_step_is_documented() -> None:
    text = (ROOT / "docs" / "script-driver.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \| (?:\*\*)?(?:`|\|| )", text, re.MULTILINE)) >= set(STEPS)


def test_the_examples_of_the_documentation_load_and_are_those_files() -> None:
    text = (ROOT / "docs" / "script-driver.md").read_text()
    blocks = re.findall(r"(?:<!-- (\S+) -->\n)?```json\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 5
    for name, block in blocks:
        check(json.loads(block))
        SCHEMA.validate(json.loads(block))
        assert not name or (ROOT / name).read_text() == block


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_scenarios_load(path: Path) -> None:
    check(json.loads(path.read_text()))
    SCHEMA.validate(json.loads(path.read_text()))


def test_the_published_schema_is_that_of_the_checks() -> None:
    printed = subprocess.run([sys.executable, "-m", "drivers.script.schema"], capture_output=True, text=True, check=True).stdout
    published = (ROOT / "docs" / "scenario.schema.json").read_text()
    assert published == printed, "python -m drivers.script.schema > docs/scenario.schema.json"
    Draft202012Validator.check_schema(json.loads(published))


def test_a_scenario_may_name_its_schema() -> None:
    scenario = {"$schema": "./scenario.schema.json", "turns": [{"steps": []}]}
    check(scenario)
    SCHEMA.validate(scenario)


@pytest.mark.parametrize(
    "step",
    [
        {},
        {"text": "x", "delay": 1},
        {"txt": "x"},
        {"text": {"chunk": 1}},
        {"text": {"text": "x", "chunks": 1}},
        {"text": None},
        {"delay": -1},
        {"line": "a\nb"},
        {"argv": 1},
        {"hang": False},
        {"exit": {"code": 1, "signal": "SIGKILL"}},
        {"commands": [{"name": "/x"}]},
        {"tool_call": {"name": "x", "result": 1, "error": "y"}},
        {"tool_call": {"name": "x", "client": {}}},
        {"parallel": [{"delay": 1}]},
        {"stop": {"reason": "refusal", "message": "x"}},
    ],
)
def test_editors_mark_what_is_refused(step: dict[str, Any]) -> None:
    assert not SCHEMA.is_valid({"turns": [{"steps": [step]}]})


async def test_the_chat_example(open_agent: Open, tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_bytes((ROOT / "tests/scenarios/chat.json").read_bytes())
    agent = await open_agent("chat.json", options={"pace": "fast"})
    assert text_in(await ask(agent, "Hi")) == "Hello! You said: Hi\n\nWhat shall we **build** today?"
    assert text_in(await ask(agent, "a picture")) == "I got 0 picture(s), and you wrote: a picture"
    assert text_in(await ask(agent, "Bye")) == 'This is answer 3. Before that you said: ["Hi", "a picture"]'


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
