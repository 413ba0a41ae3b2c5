"""A hook of the user's settings refuses a prompt: the run says why. Lines of codex 0.171.0."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drivers.codex.exec import NO_MODEL, CodexExecCodec
from drivers.contract.agent import Prompt
from drivers.contract.events import AgentToken, Hook, MessageEnd, Notice, OutputEvent, SessionEnd
from tests.drivers.codecs.test_protocol_errors import codex_running, feed

REFUSED = SessionEnd(exit_code=1, stop_reason="refusal", prompt_kept=False)
OF_TURN = {"threadId": "t", "turnId": "u"}
COMPLETED = {"method": "turn/completed", "params": {"threadId": "t", "turn": {"id": "u", "status": "completed"}}}


def hook(status: str, *entries: tuple[str, str], event: str = "userPromptSubmit") -> dict[str, Any]:
    found = [{"kind": kind, "text": text} for kind, text in entries]
    run = {"id": "h", "eventName": event, "status": status, "entries": found}
    return {"method": "hook/completed", "params": {**OF_TURN, "run": run}}


def text_and_end(events: list[OutputEvent]) -> tuple[str, OutputEvent]:
    return "".join(event.text for event in events if isinstance(event, AgentToken)), events[-1]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (hook("blocked", ("feedback", "Tickets only")), "The prompt was refused by a hook: Tickets only"),
        (hook("stopped", ("stop", "Closed today")), "The prompt was refused by a hook: Closed today"),
        (hook("blocked", ("feedback", "Late"), ("feedback", "No")), "The prompt was refused by a hook: Late; No"),
        (hook("blocked"), "The prompt was refused by a hook"),
    ],
)
def test_a_refused_prompt_is_told(line: dict[str, Any], text: str) -> None:
    codec = codex_running()
    assert text_and_end(feed(codec, line, COMPLETED)) == (text, REFUSED)
    codec.prompt(Prompt("again"))
    feed(codec, {"id": 5, "result": {"turn": {"id": "v"}}})
    feed(codec, {"method": "turn/started", "params": {"threadId": "t", "turn": {"id": "v"}}})
    end = {"method": "turn/completed", "params": {"threadId": "t", "turn": {"id": "v", "status": "completed"}}}
    assert feed(codec, end) == [SessionEnd(exit_code=0)]


@pytest.mark.parametrize("event", ["preToolUse", "postToolUse", "userPromptSubmit"])
def test_a_turn_that_goes_on_is_none_of_a_refused_prompt(event: str) -> None:
    """A hook stops a call, or refuses a message that was sent to the turn at work."""
    delta = {"method": "item/agentMessage/delta", "params": {**OF_TURN, "itemId": "i", "delta": "Done."}}
    events = feed(codex_running(), hook("blocked", ("feedback", "No"), event=event), delta, COMPLETED)
    assert text_and_end(events) == ("Done.", SessionEnd(exit_code=0))
    assert Hook(id="h", name=event, status="blocked") in events


def task(*messages: dict[str, Any]) -> tuple[list[OutputEvent], CodexExecCodec]:
    codec = CodexExecCodec()
    events = codec.receive_lines([json.dumps(message).encode() for message in messages])
    return [*events, *codec.exited(0, ())], codec


def test_the_warning_of_a_hook_is_a_notice() -> None:
    line = hook("completed", ("warning", "Remember the rules"), ("context", "for the model"))
    assert feed(codex_running(), line)[1:] == [Notice(severity="warning", text="Remember the rules")]


STARTED = ({"type": "thread.started", "thread_id": "t"}, {"type": "turn.started"})
NOTHING = {"input_tokens": 0, "cached_input_tokens": 0, "output_tokens": 0}


def test_a_task_whose_model_was_not_asked_says_so() -> None:
    """`codex exec` reports neither the hook nor its reason."""
    events, _ = task(*STARTED, {"type": "turn.completed", "usage": NOTHING})
    assert events[1:] == [AgentToken(text=NO_MODEL), MessageEnd(), REFUSED]


@pytest.mark.parametrize(
    "messages",
    [
        [{"type": "item.completed", "item": {"id": "i", "type": "agent_message", "text": ""}}],
        [{"type": "item.completed", "item": {"id": "i", "type": "reasoning", "text": "so"}}],
    ],
)
def test_a_task_that_the_model_has_answered_with_nothing_is_a_success(messages: list[dict[str, Any]]) -> None:
    events, _ = task(*STARTED, *messages, {"type": "turn.completed", "usage": NOTHING})
    assert events[-1] == SessionEnd(exit_code=0)
    events, _ = task(*STARTED, {"type": "turn.completed"})
    assert events[-1] == SessionEnd(exit_code=0)
