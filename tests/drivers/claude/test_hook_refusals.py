"""A hook of the user's settings refuses a prompt or stops a turn: the run says why. Lines of claude 2.1.332."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drivers.claude.codec import ClaudeCodec
from drivers.contract.agent import Prompt
from drivers.contract.events import AgentToken, MessageEnd, Notice, OutputEvent, SessionEnd
from tests.drivers.claude.cli import RESULT, Cli

Json = dict[str, Any]

INIT: Json = {"type": "system", "subtype": "init", "session_id": "s", "model": "m"}
NOTHING: Json = {**RESULT, "num_turns": 0, "stop_reason": None, "usage": {}}


def informational(content: str, **outcome: Any) -> Json:
    more = {"prompt_submit_outcome": outcome} if outcome else {}
    line = {"type": "system", "subtype": "informational", "level": "warning", "content": content}
    return {**line, "prevent_continuation": True, **more}


def hook_response(event: str, stdout: str) -> Json:
    names = {"hook_id": "h", "hook_name": event, "hook_event": event.partition(":")[0]}
    return {"type": "system", "subtype": "hook_response", **names, "stdout": stdout, "exit_code": 0, "outcome": "success"}


def told(events: list[OutputEvent]) -> tuple[str, SessionEnd]:
    end = events[-1]
    assert isinstance(end, SessionEnd)
    text = "".join(event.text for event in events if isinstance(event, AgentToken))
    assert not text or isinstance(events[-2], MessageEnd)
    return text, end


BLOCKED = informational(
    "UserPromptSubmit operation blocked by hook:\nTickets only\n\nOriginal prompt: go",
    kind="blocked_by_hook", prompt_kept=False, reason="Tickets only",
)  # fmt: skip
CLOSED = informational("Operation stopped by hook: Closed", kind="stopped_by_hook", prompt_kept=True, reason="Closed")


@pytest.mark.parametrize(
    ("line", "text", "kept"),
    [
        (BLOCKED, "The prompt was refused by a hook: Tickets only", False),
        (informational("x", prompt_kept=False, reason="no ticket\n"), "The prompt was refused by a hook: no ticket", False),
        (CLOSED, "A hook has stopped the turn: Closed", True),
        # Without the outcome, the text says what has happened.
        (
            informational("UserPromptSubmit operation blocked by hook:\nNo"),
            "The prompt was refused by a hook: UserPromptSubmit operation blocked by hook:\nNo",
            False,
        ),
        (informational("Something else"), "A hook has stopped the turn: Something else", True),
    ],
)
@pytest.mark.parametrize("once", [False, True])
def test_a_refused_prompt_is_told(once: bool, line: Json, text: str, kept: bool) -> None:
    expected = SessionEnd(exit_code=1, stop_reason="refusal", prompt_kept=kept)
    if once:
        codec = ClaudeCodec(once=True)
        lines = [json.dumps(message).encode() for message in (INIT, line, NOTHING)]
        assert [event for event in codec.receive_lines(lines) if isinstance(event, AgentToken)] == [AgentToken(text=text)]
        assert codec.run_result == expected
        return
    assert told(Cli().take(INIT, line, NOTHING)) == (text, expected)


def test_the_turn_after_a_refused_one_is_as_any_other() -> None:
    cli = Cli()
    cli.take(INIT, BLOCKED, NOTHING)
    cli.codec.prompt(Prompt("again"))
    assert told(cli.take(INIT, RESULT)) == ("", SessionEnd(exit_code=0))


@pytest.mark.parametrize(
    ("event", "stdout", "text"),
    [
        ("PreToolUse:Bash", '{"continue":false,"stopReason":"No tools today"}\n', "A hook has stopped the turn: No tools today"),
        ("PostToolUse:Write", '{"continue": false, "stopReason": "Enough"}', "A hook has stopped the turn: Enough"),
        ("PostToolUse:Write", '{"continue": false}', "A hook has stopped the turn"),
        ("PostToolUse:Write", "not JSON", "A hook has stopped the turn"),
    ],
)
def test_a_turn_that_a_hook_has_stopped_in_its_middle_says_so(event: str, stdout: str, text: str) -> None:
    """The CLI keeps what it has done, so that the end is none of a refusal."""
    end = {**RESULT, "num_turns": 2, "terminal_reason": "hook_stopped", "result": "", "stop_reason": "tool_use"}
    assert told(Cli().take(INIT, hook_response(event, stdout), end)) == (text, SessionEnd(exit_code=0))


@pytest.mark.parametrize("words", ["Unknown command: /nothing", "The conversation was reset"])
def test_a_turn_without_a_message_has_the_text_of_its_result(words: str) -> None:
    assert told(Cli().take(INIT, {**NOTHING, "result": words})) == (words, SessionEnd(exit_code=0))


@pytest.mark.parametrize(
    ("level", "notices"),
    [("info", []), ("notice", []), ("warning", [Notice(severity="warning", text="The model has changed.")])],
)
def test_other_informational_lines_end_nothing(level: str, notices: list[Notice]) -> None:
    line = {"type": "system", "subtype": "informational", "level": level, "content": "The model has changed."}
    events = Cli().take(INIT, line, RESULT)
    assert told(events) == ("", SessionEnd(exit_code=0))
    assert [event for event in events if isinstance(event, Notice)] == notices
