"""The slash commands of a session of codex. The lines of the CLI are those of codex 0.169.0."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from drivers.codex.commands import commands_of
from drivers.codex.driver import CodexDriver
from drivers.contract.agent import Prompt
from drivers.contract.agent_specs import SessionSpec
from drivers.contract.codec import Codec
from drivers.contract.driver_info import SLASH_OPTION
from drivers.contract.events import (
    Commands,
    Compacted,
    Error,
    OutputEvent,
    SessionEnd,
)
from drivers.contract.messages import TextBlock
from tests.drivers.codex.test_driver import SPEC, opened, written

SKILLS = {
    "data": [
        {
            "cwd": "/nowhere/work",
            "errors": [],
            "skills": [
                {"name": "greet", "description": "Greets.", "enabled": True, "path": "/s/SKILL.md", "scope": "user"},
                {"name": "off", "description": "Is off.", "enabled": False, "path": "/o/SKILL.md", "scope": "user"},
                {
                    "name": "review-agent",
                    "description": "Perform a read-only, defect-first review of a specified code change.",
                    "interface": {"shortDescription": "Find actionable bugs in code changes"},
                    "enabled": True,
                    "path": "/r/SKILL.md",
                    "scope": "system",
                },
            ],
        }
    ]
}
ON = replace(SPEC, options={"slash_commands": "on"})


def receive(codec: Codec, **message: Any) -> list[OutputEvent]:
    events = codec.receive(json.dumps(message).encode())
    events += codec.pending
    codec.pending.clear()
    return events


def ready(spec: SessionSpec | None = None, *, on: bool = True) -> Codec:
    """A codec whose thread is open."""
    codec, asked = opened(spec or (ON if on else SPEC))
    receive(codec, id=asked["id"], result={"thread": {"id": "T"}, "model": "m"})
    assert codec.phase == "ready"
    return codec


def prompted(*content: str, on: bool = True) -> tuple[Codec, dict[str, Any]]:
    """A codec that has taken a prompt, and the request that it has sent for it."""
    codec = ready(on=on)
    written(codec)
    blocks = tuple(TextBlock(text=text) for text in content)
    codec.prompt(Prompt(content[0] if len(content) == 1 else blocks))
    (request,) = written(codec)
    return codec, request


def test_commands_of_a_session_are_reported_when_they_change() -> None:
    codec = ready()
    (asked,) = written(codec)
    assert (asked["method"], asked["params"]) == ("skills/list", {"cwds": ["/nowhere/work"]})
    [reported] = receive(codec, id=asked["id"], result=SKILLS)
    assert isinstance(reported, Commands)
    assert [command.name for command in reported.commands] == ["compact", "$greet", "$review-agent"]
    assert reported.commands[-1].description == "Find actionable bugs in code changes"
    assert receive(codec, method="skills/changed", params={}) == []
    (again,) = written(codec)
    assert receive(codec, id=again["id"], result=SKILLS) == []


def test_no_commands_are_listed_where_a_slash_is_text() -> None:
    codec = ready(on=False)
    assert written(codec) == []
    assert receive(codec, method="skills/changed", params={}) == [] and written(codec) == []


@pytest.mark.parametrize("result", [None, {}, {"data": None}, {"data": [None, {"skills": [None, {"name": 1}]}]}])
def test_commands_without_skills(result: Any) -> None:
    assert [command.name for command in commands_of(result)] == ["compact"]


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("/$greet me", "$greet me"),
        ("/$greet", "$greet"),
        # no commands
        ("/", "/"),
        ("/$", "/$"),
        ("/$ greet", "/$ greet"),
        ("/review", "/review"),
        ("/init", "/init"),
        ("/compacted", "/compacted"),
        (" /compact", " /compact"),
        ("compact", "compact"),
    ],
)
def test_text_for_the_model(prompt: str, text: str) -> None:
    _, request = prompted(prompt)
    assert (request["method"], request["params"]["input"][0]["text"]) == ("turn/start", text)
    _, request = prompted(prompt, on=False)
    assert request["params"]["input"][0]["text"] == prompt


def test_content_behind_a_command_is_kept() -> None:
    _, request = prompted("/$greet", "a file")
    assert [part["text"] for part in request["params"]["input"]] == ["$greet", "a file"]


def test_compact() -> None:
    codec, request = prompted("/compact")
    assert (request["method"], request["params"]) == ("thread/compact/start", {"threadId": "T"})
    assert receive(codec, id=request["id"], result={}) == []
    receive(codec, method="turn/started", params={"threadId": "T", "turn": {"id": "t1"}})
    item = {"type": "contextCompaction", "id": "i"}
    events = receive(codec, method="item/started", params={"threadId": "T", "turnId": "t1", "item": item})
    events += receive(codec, method="item/completed", params={"threadId": "T", "turnId": "t1", "item": item})
    events += receive(codec, method="turn/completed", params={"threadId": "T", "turn": {"id": "t1", "status": "completed"}})
    assert events == [Compacted(), SessionEnd(exit_code=0)]
    assert codec.phase == "ready"


def test_refused_compaction_ends_the_run_with_the_reason() -> None:
    codec, request = prompted("/compact")
    events = receive(codec, id=request["id"], error={"code": -32600, "message": "not now"})
    assert events == [Error(message="codex: not now"), SessionEnd(exit_code=1, stop_reason="error")]


def test_slash_commands_are_an_option_of_the_driver() -> None:
    [option] = [option for option in CodexDriver().info().options if option.name == SLASH_OPTION]
    assert option.default == "off" and "on" in option.choices
