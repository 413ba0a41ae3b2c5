"""Which prompts are commands of claude: none that changes a locked option, or settings that others use."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drivers.claude.commands import OF_THE_USER, name_of, permitted
from drivers.claude.stdin_lines import UserMessages, without_forbidden
from drivers.contract.agent import Prompt
from drivers.contract.driver_info import FAST_OPTION
from drivers.contract.messages import TextBlock


@pytest.mark.parametrize("lasting", [True, False])
def test_no_command_is_permitted_where_the_model_is_locked(lasting: bool) -> None:
    for locked in ({"model"}, {"effort", "cwd"}, {FAST_OPTION}):
        assert not any(permitted(name, locked, lasting=lasting) for name in ("model", "compact", "mine"))
    assert permitted("compact", {"cwd"}, lasting=lasting) and permitted("mine", set(), lasting=lasting)


def test_commands_of_the_user_are_for_the_user_only() -> None:
    assert all(permitted(name, set(), lasting=True) for name in OF_THE_USER)
    assert not any(permitted(name, set(), lasting=False) for name in OF_THE_USER)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("/config a=b", "config"), (" \n/config", "config"), ("/", ""), ("/ config", ""), ("config", None), ("a /config", None),
        # A byte order mark is a space for the CLI.
        ("/config\ufeffa=b", "config"), (" \ufeff /config\u00a0a=b", "config"), ("/\ufeffconfig", ""), ("", None),
    ],
)  # fmt: skip
def test_name_of_a_command(text: str, name: str | None) -> None:
    assert name_of(text) == name


def line(content: Any) -> Any:
    return UserMessages(lambda name: name != "config").prompt(Prompt(content))["message"]["content"]


def test_a_command_that_is_not_permitted_is_text() -> None:
    assert line("/config a=b") == "\n/config a=b" and line("/compact") == "/compact"
    assert line("/config\ufeffa=b") == "\n/config\ufeffa=b"
    blocks = line((TextBlock(text="/compact"), TextBlock(text="/config a=b")))
    assert [block["text"] for block in blocks] == ["\n/compact", "\n/config a=b"], json.dumps(blocks)
    assert without_forbidden("/config", lambda name: False) == "\n/config" and without_forbidden("x", lambda name: False) == "x"
