"""Shared parts of codecs: JSON lines with handlers, tool call events, held back events, denials, data URIs, slash commands."""

from __future__ import annotations

from typing import Any

import pytest

from drivers.codecs.asking_codec import AskingCodec
from drivers.codecs.json_lines import JsonLineCodec
from drivers.codecs.slash_commands import escape
from drivers.codecs.tool_calls import MAX_STREAMED_OUTPUT, Call, CallTracker
from drivers.contract.events import (
    AgentToken,
    AwaitedCall,
    Awaiting,
    MessageEnd,
    OutputEvent,
    Stdout,
    Title,
    ToolCall,
    ToolOutput,
    ToolResult,
)
from drivers.contract.messages import data_uri, parse_data_uri
from drivers.contract.tool_denials import denied


class Example(JsonLineCodec):
    """Reads `text` lines; a line without a text, or with a list instead, is malformed."""

    def _text(self, message: dict[str, Any]) -> list[OutputEvent] | None:
        return [AgentToken(text=message["text"].strip())] if message["text"] else None

    handlers = {"text": _text}


class Overridden(Example):
    def malformed(self, message: dict[str, Any]) -> list[OutputEvent] | None:
        return [Title(text="malformed")]

    def deliver(self, events: list[OutputEvent]) -> list[OutputEvent]:
        return [*events, Title(text="delivered")]


class Counting(JsonLineCodec):
    """Ends a message after five deltas, and knows nothing of lines that are read together."""

    deltas = 0

    def _text(self, message: dict[str, Any]) -> list[OutputEvent]:
        self.deltas += 1
        return [AgentToken(text=message["text"]), *([MessageEnd()] if self.deltas == 5 else [])]

    handlers = {"text": _text}


@pytest.mark.parametrize(
    ("line", "events"),
    [
        (b'{"type": "text", "text": " a "}', [AgentToken(text="a")]),
        (b'{"type": "other"}', [Stdout(line='{"type": "other"}')]),
        (b'{"type": ["text"]}', [Stdout(line='{"type": ["text"]}')]),
        (b'{"type": "text", "text": ""}', [Stdout(line='{"type": "text", "text": ""}')]),
        (b'{"type": "text"}', [Stdout(line='{"type": "text"}')]),
        (b'{"type": "text", "text": [1]}', [Stdout(line='{"type": "text", "text": [1]}')]),
        (b"[1]", [Stdout(line="[1]")]),
        (b"not JSON \xff\r", [Stdout(line="not JSON \ufffd")]),
        (b"  ", []),
        (b"", []),
    ],
)
def test_a_line_that_no_handler_understands_is_stdout(line: bytes, events: list[OutputEvent]) -> None:
    assert Example().receive(line) == events


def test_lines_that_are_read_together_are_received_one_by_one() -> None:
    delta = AgentToken(text="a")
    assert Counting().receive_lines([b'{"type": "text", "text": "a"}'] * 6) == [*[delta] * 5, MessageEnd(), delta]


def test_a_codec_decides_what_malformed_messages_give_and_what_is_delivered() -> None:
    codec = Overridden()
    assert codec.receive(b'{"type": "text"}') == [Title(text="malformed"), Title(text="delivered")]
    assert codec.receive(b" ") == [Title(text="delivered")]
    assert codec.receive(b"x") == [Stdout(line="x"), Title(text="delivered")]


class Asking(AskingCodec):
    """Asks about the calls `open` after so many seconds of silence."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.phase, self.seconds, self.open = "running", seconds, list[str]()

    def silence(self) -> float | None:
        return self.seconds if self.open else None

    def question(self) -> list[OutputEvent]:
        calls, self.open = [AwaitedCall(id=call_id, wants="result", optional=call_id == "o") for call_id in self.open], []
        return [AgentToken(text="asking"), Awaiting(calls=tuple(calls))]

    def dispatch(self, message: dict[str, Any]) -> list[OutputEvent]:
        self.open += message.get("calls", ())
        return [AgentToken(text=message["text"])] if "text" in message else []


def test_calls_that_come_one_by_one_are_one_question_after_the_silence() -> None:
    codec = Asking(0.2)
    assert codec.receive(b"{}") == [] and codec.debounce_seconds() is None
    assert codec.receive(b'{"calls": ["a"]}') == codec.receive(b'{"calls": ["b", "o"]}') == []
    assert (codec.debounce_seconds(), codec.phase) == (0.2, "running")
    *_, asked = codec.debounced_events()
    assert isinstance(asked, Awaiting) and [call.id for call in asked.calls] == ["a", "b", "o"]
    assert (codec.debounce_seconds(), codec.debounced_events(), codec.phase) == (None, [], "waiting")
    # What the CLI writes now belongs to the turn after the answers. The optional call needs none.
    assert codec.receive(b'{"text": "late"}') == codec.receive(b'{"text": "later"}') == []
    codec.answered("a", [AgentToken(text="answered")])
    assert (codec.pending, codec.phase) == ([], "waiting")
    codec.answered("b", [])
    assert [event.text for event in codec.pending if isinstance(event, AgentToken)] == ["late", "later", "answered"]
    assert (codec.phase, codec.release()) == ("running", [])


def test_the_client_of_a_cli_that_certainly_waits_is_asked_at_once() -> None:
    codec = Asking(0)
    text, asking, asked = codec.receive(b'{"calls": ["a"], "text": "go"}')
    assert [text, asking] == [AgentToken(text="go"), AgentToken(text="asking")]
    assert isinstance(asked, Awaiting) and codec.phase == "waiting"
    codec.receive(b'{"calls": ["b"]}')
    codec.answered("a", [])
    # The next question follows the answer.
    assert isinstance(codec.pending[-1], Awaiting) and codec.phase == "waiting"
    codec.stop_asking()
    assert (codec.phase, codec.debounce_seconds()) == ("running", None)


def test_a_call_starts_once_and_ends_once() -> None:
    calls = CallTracker()
    call = Call("a", "shell", {"command": "ls"}, "ls", "parent")
    started = ToolCall(id="a", name="shell", status="started", input={"command": "ls"}, detail="ls", parent_id="parent")
    assert calls.start(call) == [started]
    assert calls.start(call) == [] and "a" in calls
    assert calls.end("a", "out", failed=True) == [
        ToolResult(tool_call_id="a", output="out", is_error=True, parent_id="parent"),
        ToolCall(id="a", name="shell", status="failed", parent_id="parent"),
    ]
    assert "a" not in calls
    with pytest.raises(KeyError):
        calls.end("a", "out", failed=False)


def test_output_of_a_running_call_is_reported_up_to_its_limit() -> None:
    calls = CallTracker()
    assert calls.output("a", "early") == []
    calls.start(Call("a", "shell"))
    assert calls.output("a", "one") == [ToolOutput(tool_call_id="a", text="one")]
    assert calls.output("a", "") == []
    assert calls.output("a", "x" * MAX_STREAMED_OUTPUT) == [
        ToolOutput(tool_call_id="a", text="x" * (MAX_STREAMED_OUTPUT - 3)),
    ]  # fmt: skip
    assert calls.output("a", "more") == []
    calls.end("a", "", failed=False)
    assert calls.output("a", "late") == []


def test_calls_that_still_run_fail_when_their_run_is_over() -> None:
    calls = CallTracker()
    for call_id in ("a", "b", "c"):
        calls.start(Call(call_id, "shell"))
    assert calls.finish("b", failed=False) == [ToolCall(id="b", name="shell", status="completed")]
    assert calls.fail_all() == [ToolCall(id=call_id, name="shell", status="failed") for call_id in ("a", "c")]
    assert calls.fail_all() == []


@pytest.mark.parametrize(("call_id", "name"), [(1, "shell"), (None, "shell"), ("a", None), ("a", ["shell"])])
def test_ids_and_names_of_calls_are_strings(call_id: Any, name: Any) -> None:
    with pytest.raises(TypeError):
        Call(call_id, name)


def test_the_text_of_a_denial() -> None:
    assert (denied(), denied("no"), denied("")) == ("Tool call denied", "Tool call denied: no", "Tool call denied")


@pytest.mark.parametrize("url", ["https://x/y.png", "data:image/png,AA", "data:;base64,AA", "data:image/png;charset=x;base64,AA"])
def test_other_urls_are_no_data_uris(url: str) -> None:
    assert parse_data_uri(url) is None


def test_a_data_uri_is_read_as_it_was_written() -> None:
    assert data_uri("image/png", "AA==") == "data:image/png;base64,AA=="
    assert parse_data_uri("data:image/png;base64,AA==\n") == ("image/png", "AA==\n")


@pytest.mark.parametrize(("text", "escaped"), [("/clear", "\n/clear"), ("a /clear", "a /clear"), ("", ""), ("$x", "$x")])
def test_a_command_is_escaped(text: str, escaped: str) -> None:
    assert escape(text, "\n") == escaped


def test_a_cli_can_have_several_command_prefixes() -> None:
    assert escape("$x", " ", ("/", "$")) == " $x"
