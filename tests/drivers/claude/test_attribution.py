"""Which turn a line of claude belongs to: lines of an earlier turn, or of one of the CLI's own, are no part of a prompt's answer.

The order of the lines is that of claude 2.1.329, with and without the ids that it reports.
"""

from __future__ import annotations

from typing import Any

import pytest

from drivers.contract.agent import Prompt
from drivers.contract.events import AgentToken, AwaitedCall, Awaiting, Commands, OutputEvent, SessionEnd, Title
from tests.drivers.claude.cli import RESULT, Cli, hook, permission, stream

Json = dict[str, Any]

INIT: Json = {"type": "system", "subtype": "init", "session_id": "s", "model": "m"}
NOTIFICATION: Json = {**RESULT, "origin": {"kind": "task-notification"}, "user_message_uuid": None}


def text(words: str) -> list[Json]:
    return [
        stream("message_start", message={"id": words}),
        stream("content_block_delta", delta={"type": "text_delta", "text": words}),
        stream("message_delta", delta={"stop_reason": "end_turn"}),
        stream("message_stop"),
    ]


class Turns:
    """A CLI with or without ids."""

    def __init__(self, *, ids: bool) -> None:
        self.cli, self._ids = Cli(prompted=False), ids
        self.id = ""

    def prompt(self, words: str) -> None:
        self.cli.codec.prompt(Prompt(words))
        self.id = self.cli.written()[-1]["uuid"]

    def take(self, *lines: Json) -> list[OutputEvent]:
        return [event for event in self.cli.take(*lines) if event.kind != "native_session"]

    def lifecycle(self, state: str, message_id: str = "") -> list[Json]:
        return [{"type": "command_lifecycle", "command_uuid": message_id or self.id, "state": state}] if self._ids else []

    def result(self) -> Json:
        return {**RESULT, **({"user_message_uuid": self.id, "user_message_uuids": [self.id]} if self._ids else {})}

    def turn(self, words: str) -> list[Json]:
        begin = [*self.lifecycle("queued"), *self.lifecycle("started"), INIT]
        return [*begin, *text(words), self.result(), *self.lifecycle("completed")]


def answer(events: list[OutputEvent]) -> str:
    assert [event.kind for event in events].count("session_end") == 1 and isinstance(events[-1], SessionEnd)
    return "".join(event.text for event in events if isinstance(event, AgentToken))


@pytest.fixture(params=[True, False], ids=["with ids", "without ids"])
def turns(request: pytest.FixtureRequest) -> Turns:
    made = Turns(ids=request.param)
    made.prompt("one")
    assert answer(made.take(*made.turn("one"))) == "one"
    return made


def test_a_late_result_before_the_next_prompt(turns: Turns) -> None:
    assert turns.take(*text("late"), turns.result()) == []
    turns.prompt("two")
    assert answer(turns.take(*turns.turn("two"))) == "two"


def test_a_late_result_after_the_next_prompt(turns: Turns) -> None:
    late = turns.result()
    turns.prompt("two")
    assert turns.take(*text("late"), late) == []
    assert answer(turns.take(*turns.turn("two"))) == "two"


def test_a_late_result_within_the_next_turn() -> None:
    turns = Turns(ids=True)
    turns.prompt("one")
    late = turns.result()
    turns.take(*turns.turn("one"))
    turns.prompt("two")
    started, (*rest, result, completed) = turns.turn("two")[:3], turns.turn("two")[3:]
    assert answer(turns.take(*started, late, *rest, result, completed)) == "two"


def test_a_turn_of_the_clis_own_that_ends_after_the_next_prompt() -> None:
    turns = Turns(ids=True)
    turns.prompt("one")
    turns.take(*turns.turn("one"), INIT)
    turns.prompt("two")
    assert turns.take(*turns.lifecycle("queued"), INIT, *text("the task is done"), NOTIFICATION) == []
    assert answer(turns.take(*turns.turn("two"))) == "two"


def test_a_prompt_that_is_answered_within_a_turn_of_the_clis_own() -> None:
    turns = Turns(ids=True)
    turns.prompt("one")
    turns.take(*turns.turn("one"))
    turns.prompt("two")
    replay = {"type": "user", "message": {"content": "two"}, "isReplay": True, "uuid": turns.id}
    merged = {**NOTIFICATION, "user_message_uuids": [turns.id]}
    assert answer(turns.take(*turns.lifecycle("queued"), *text("the task"), replay, *text("both"), merged)) == "both"


def test_the_title_and_the_commands_are_of_the_session(turns: Turns) -> None:
    turns.prompt("two")
    assert turns.take({"type": "system", "subtype": "session_title_changed", "title": "New"}) == [Title(text="New")]
    commands = {"type": "system", "subtype": "commands_changed", "commands": [{"name": "fix"}]}
    assert all(isinstance(event, Commands) for event in turns.take(commands))


def test_a_call_outside_of_a_run_is_denied(turns: Turns) -> None:
    for begin in (False, True):
        if begin:
            turns.prompt("two")
        turns.take(hook(f"a{begin}", "Bash"), permission(f"b{begin}", "Bash"))
        answers = turns.cli.answers()
        assert answers[f"hook-a{begin}"]["hookSpecificOutput"]["permissionDecision"] == "deny"
        assert answers[f"may-b{begin}"]["behavior"] == "deny"
    assert answer(turns.take(*turns.turn("two"))) == "two"


def test_a_call_that_the_cli_has_not_begun_is_optional_after_a_silence() -> None:
    cli = Cli()
    cli.message(("a", "Bash"), ("b", "Read"))
    assert cli.take(hook("a", "Bash")) == []
    codec = cli.codec
    assert codec.phase == "running"
    (asked,) = cli.settle()
    assert asked == Awaiting(
        calls=(AwaitedCall(id="a", wants="permission"), AwaitedCall(id="b", wants="permission", optional=True))
    )
    assert codec.phase == "waiting" and codec.debounce_seconds() is None
