"""Which prompts are commands of claude: none that changes a locked option, or settings that others use."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drivers.claude.commands import name_of, permitted
from drivers.claude.stdin_lines import UserMessages, without_forbidden
from drivers.contract.agent import Prompt
from drivers.contract.driver_info import FAST_OPTION
from drivers.contract.messages import TextBlock

EVERY = ("config", "model", "effort", "mine", "compact")


@pytest.mark.parametrize(
    ("locked", "lasting", "expected"),
    [
        (set(), True, {"config", "model", "effort", "mine", "compact"}),
        (set(), False, {"model", "effort", "mine", "compact"}),
        ({"cwd"}, True, {"config", "model", "effort", "mine", "compact"}),
        ({"model"}, True, {"compact"}),
        ({"effort"}, False, {"compact"}),
        ({FAST_OPTION}, True, {"compact"}),
    ],
)
def test_commands_that_a_client_may_use(locked: set[str], lasting: bool, expected: set[str]) -> None:
    assert {name for name in EVERY if permitted(name, locked, lasting=lasting)} == expected


@pytest.mark.parametrize(
    ("text", "name"),
    [("/config a=b", "config"), (" \n/config", "config"), ("/", ""), ("/ config", ""), ("config", None), ("a /config", None)],
)
def test_name_of_a_command(text: str, name: str | None) -> None:
    assert name_of(text) == name


def line(content: Any) -> Any:
    return UserMessages(lambda name: name != "config").prompt(Prompt(content))["message"]["content"]


def test_a_command_that_is_not_permitted_is_text() -> None:
    assert line("/config a=b") == "\n/config a=b" and line("/compact") == "/compact"
    blocks = line((TextBlock(text="/compact"), TextBlock(text="/config a=b")))
    assert [block["text"] for block in blocks] == ["\n/compact", "\n/config a=b"], json.dumps(blocks)
    assert without_forbidden("/config", lambda name: False) == "\n/config" and without_forbidden("x", lambda name: False) == "x"
