"""The documentation of the script driver and its examples."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drivers.script.driver import PROGRAM
from drivers.script.program.scenario import parse
from drivers.script.program.steps import STEPS
from tests.drivers.script.script_runs import (
    ROOT,
    SCENARIOS,
    Open,
    ask,
    end,
    text_in,
)


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


def test_requests_by_hand(tmp_path: Path) -> None:
    requests = '{"type":"open","options":{"pace":"fast"}}\n{"type":"prompt","content":"Hi"}\n'
    done = subprocess.run([sys.executable, "-I", "-S", str(PROGRAM), "--task"], input=requests, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert "You said: Hi" in "".join(line["text"] for line in lines if line["kind"] == "agent_token")
