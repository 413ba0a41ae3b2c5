"""Slash commands and titles that claude reports if slash commands are on."""

from __future__ import annotations

import json
from typing import Any

from drivers.claude.codec import ClaudeCodec
from drivers.contract.agent import Prompt
from drivers.contract.events import Commands, OutputEvent, SlashCommand, Stdout, Title
from tests.drivers.claude.recordings import TRANSCRIPTS

COST = {"name": "cost", "description": "Tokens.", "argumentHint": ""}
KNOWN = Commands(commands=(SlashCommand(name="cost", description="Tokens."),))


def codec(*, verbatim: bool = False, **answer: Any) -> tuple[ClaudeCodec, list[OutputEvent]]:
    found = ClaudeCodec(is_command=None if verbatim else lambda name: True)
    response = {"subtype": "success", "request_id": "init", "response": answer}
    return found, take(found, type="control_response", response=response)


def take(found: ClaudeCodec, **line: Any) -> list[OutputEvent]:
    return found.receive(json.dumps(line).encode())


def test_commands_are_reported_at_the_start_and_when_they_change() -> None:
    cli, events = codec(commands=[COST, {"name": "__inner", "description": ""}])
    assert (events, cli.phase) == ([KNOWN], "ready")
    assert take(cli, type="system", subtype="commands_changed", commands=[COST]) == []
    fix = {"name": "fix", "description": "Mends.", "argumentHint": "[what]", "builtin": True}
    cli.prompt(Prompt("go"))
    event = Commands(commands=(*KNOWN.commands, SlashCommand(name="fix", description="Mends.", hint="[what]")))
    assert take(cli, type="system", subtype="commands_changed", commands=[COST, fix]) == [event]


def test_no_commands_are_reported_if_a_slash_is_text() -> None:
    cli, events = codec(verbatim=True, commands=[COST])
    assert events == take(cli, type="system", subtype="commands_changed", commands=[]) == []


def test_a_recorded_initialize_response() -> None:
    cli = ClaudeCodec(is_command=lambda name: True)
    first = (TRANSCRIPTS / "claude" / "plain.jsonl").read_bytes().splitlines()[0]
    (event,) = cli.receive(first)
    assert isinstance(event, Commands)
    names = {command.name: command.hint for command in event.commands}
    assert names["compact"] == "<optional custom summarization instructions>" and names["context"] is None
    assert not any(name.startswith("_") for name in names)


def test_a_title_is_reported_once() -> None:
    cli, _ = codec()
    assert take(cli, type="system", subtype="session_title_changed", title="One") == [Title(text="One")]
    assert take(cli, type="system", subtype="session_title_changed", title="One") == []


def test_malformed_lines_are_stdout_and_malformed_commands_are_ignored() -> None:
    cli, _ = codec()
    for line in ({"subtype": "session_title_changed"}, {"subtype": "commands_changed"}):
        assert [type(event) for event in take(cli, type="system", **line)] == [Stdout]
    assert codec(commands=7)[1] == codec(commands=None)[1] == []
