"""Lines that other programs have written on too, with each codec: control sequences, progress bars, several objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from drivers.claude.codec import ClaudeCodec
from drivers.codecs.output_event_lines import EventLineCodec
from drivers.codex.exec import CodexExecCodec
from drivers.contract.codec import Codec
from drivers.contract.events import AgentToken, OutputEvent, SessionEnd, Stdout
from drivers.contract.line_splitter import line_parts
from drivers.gemini.one_shot_codec import GeminiTaskCodec
from tests.drivers.codecs.test_protocol_errors import (
    acp,
    acp_running,
    claude_running,
    codex,
    codex_running,
    event_lines_running,
)

Json = dict[str, Any]

BEFORE = {
    "title": b"\x1b]0;project: ready\x07",
    "title, ended by ESC": b"\x1b]2;project\x1b\\",
    "title without an end": b"\x1b]0;ready",
    "mode": b"\x1b[?2004h",
    "colours": b"\x1b[0m\x1b[1;31m",
    "character set": b"\x1b(B\x1b=",
    "device control": b"\x1bP+q544e\x1b\\",
    "byte order mark": b"\xef\xbb\xbf",
    "two marks": b"\xef\xbb\xbf\x1b[2K\xef\xbb\xbf",
    "progress": b"Downloading 100%\r",
    "spinner": b"|\x08/\x08-\x08",
    "bar in colour": b"\x1b[32m==> 12 %\x1b[0m\r\x1b[K",
    "text without a newline": b"Loading...",
    "not UTF-8": b"t\xe9l\xe9chargement\r",
    "zero bytes": b"\x00\x00",
    "spaces": b" \t ",
}
"""Bytes before an object on its line."""

acp_says = {"method": "session/update", "params": {"sessionId": "s", "update": {
    "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "It is {\"42\"}."}}}}  # fmt: skip
codex_says = {"method": "item/agentMessage/delta", "params": {
    "threadId": "t", "turnId": "u", "itemId": "i", "delta": 'It is {"42"}.'}}  # fmt: skip
claude_event = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 'It is {"42"}.'}}
claude_says = [
    {"type": "stream_event", "session_id": "n", "parent_tool_use_id": None, "event": event}
    for event in (
        {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        claude_event,
    )
]
claude_result = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "result": 'It is {"42"}.',
    "usage": {},
    "session_id": "n",
}
ANSWERS: dict[str, tuple[Callable[[], Codec], Sequence[Json]]] = {
    "acp": (acp_running, [acp_says, {"id": 3, "result": {"stopReason": "end_turn"}}]),
    "codex": (
        codex_running,
        [codex_says, {"method": "turn/completed", "params": {"threadId": "t", "turn": {"id": "u", "status": "completed"}}}],
    ),
    "claude": (claude_running, [*claude_says, claude_result]),
    "claude task": (lambda: ClaudeCodec(once=True), [*claude_says, claude_result]),
    "events": (
        event_lines_running,
        [{"kind": "agent_token", "text": 'It is {"42"}.'}, {"kind": "session_end", "exit_code": 0, "stop_reason": "end_turn"}],
    ),
    "codex task": (
        CodexExecCodec,
        [
            {"type": "item.completed", "item": {"id": "i", "type": "agent_message", "text": 'It is {"42"}.'}},
            {"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 1}},
        ],
    ),
    "gemini task": (
        GeminiTaskCodec,
        [
            {"type": "message", "role": "assistant", "content": 'It is {"42"}.', "delta": True},
            {"type": "result", "status": "success", "stats": {}},
        ],
    ),
}
"""The codec of a run, and the messages of its answer and its end."""
OPENINGS: dict[str, tuple[Callable[[], Codec], Sequence[Json]]] = {
    "acp": (acp, [{"id": 1, "result": {"protocolVersion": 1}}, {"id": 2, "result": {"sessionId": "s"}}]),
    "codex": (
        codex,
        [{"id": 1, "result": {}}, {"id": 2, "result": {"config": {}}}, {"id": 3, "result": {"thread": {"id": "t"}}}],
    ),
    "claude": (
        ClaudeCodec,
        [{"type": "control_response", "response": {"subtype": "success", "request_id": "init", "response": {}}}],
    ),
    "events": (EventLineCodec, [{"kind": "native_session", "native_id": "n"}]),
}
"""The codec of a session, and the messages that open it."""


def encoded(message: Json) -> bytes:
    return json.dumps(message).encode()


def text_of(events: Sequence[OutputEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, AgentToken))


def ends_well(codec: Codec, events: Sequence[OutputEvent]) -> bool:
    found = [event for event in events if isinstance(event, SessionEnd)]
    found += [codec.run_result] if codec.run_result is not None else []
    return [end.stop_reason for end in found] == ["end_turn"]


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_behind_noise_arrives(name: str, before: bytes) -> None:
    make, messages = ANSWERS[name]
    codec = make()
    events = codec.receive_lines([before + encoded(message) + b"\r" for message in messages])
    assert text_of(events) == 'It is {"42"}.' and ends_well(codec, events)
    assert codec.protocol_error is None
    assert not any("{" in event.line for event in events if isinstance(event, Stdout))


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("name", OPENINGS)
def test_a_session_whose_opening_is_behind_noise_is_ready(name: str, before: bytes) -> None:
    make, messages = OPENINGS[name]
    codec = make()
    codec.receive_lines([before + encoded(message) for message in messages])
    assert (codec.phase, codec.protocol_error, codec.start_error) == ("ready", None, None)


@pytest.mark.parametrize("between", [b"", b" ", b"\x1b[0m", b"\rDownloading 3%\r", b"done", b",\r"])
@pytest.mark.parametrize("name", ANSWERS)
def test_several_objects_on_a_line_are_read_in_their_order(name: str, between: bytes) -> None:
    make, messages = ANSWERS[name]
    codec = make()
    events = codec.receive(between.join(map(encoded, messages)))
    assert text_of(events) == 'It is {"42"}.' and ends_well(codec, events)


@pytest.mark.parametrize("after", [b"\x1b[?25h", b"\x1b]0;done\x07", b"Saved.", b"\rSaved."])
@pytest.mark.parametrize("name", ANSWERS)
def test_noise_behind_an_object_is_no_part_of_it(name: str, after: bytes) -> None:
    make, messages = ANSWERS[name]
    codec = make()
    events = codec.receive_lines([encoded(message) + after for message in messages])
    assert text_of(events) == 'It is {"42"}.' and ends_well(codec, events)
    printed = {event.line for event in events if isinstance(event, Stdout)}
    assert printed == ({"Saved."} if b"Saved" in after else set())


@pytest.mark.parametrize("sequence", [b"\x1b]0;title\x07", b"\x1b[?25l", b"\x00"])
@pytest.mark.parametrize("name", ANSWERS)
def test_a_control_sequence_inside_of_an_object(name: str, sequence: bytes) -> None:
    make, messages = ANSWERS[name]
    codec = make()
    lines = [encoded(message) for message in messages]
    events = codec.receive_lines([line[:9] + sequence + line[9:] for line in lines])
    assert text_of(events) == 'It is {"42"}.' and ends_well(codec, events)


@pytest.mark.parametrize("name", ANSWERS)
def test_bytes_that_are_not_utf_8_are_replaced(name: str) -> None:
    make, messages = ANSWERS[name]
    codec = make()
    lines = [encoded(message).replace(b"It is", b"It \xff\xfeis") for message in messages]
    events = codec.receive_lines(lines)
    assert text_of(events) == 'It \ufffd\ufffdis {"42"}.' and ends_well(codec, events)


@pytest.mark.parametrize("before", [b"", b"\x1b[?2004h", b"99%\r", b'{"type":"unknown"}', b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", ANSWERS)
def test_half_an_object_in_a_run_is_an_error_that_quotes_it(name: str, before: bytes) -> None:
    make, messages = ANSWERS[name]
    codec = make()
    half = encoded(messages[-1])[:-4]
    codec.receive(before + half)
    assert codec.protocol_error is not None and half.decode()[:60] in codec.protocol_error
    assert "not valid JSON" in codec.protocol_error


@pytest.mark.parametrize("before", [b"", b"\x1b]0;title\x07", b'{"level":"info"}'])
@pytest.mark.parametrize("name", OPENINGS)
def test_half_an_object_at_the_start_is_an_error_that_quotes_it(name: str, before: bytes) -> None:
    make, messages = OPENINGS[name]
    codec = make()
    half = encoded(messages[0])[:-2]
    codec.receive(before + half)
    assert codec.protocol_error is not None and half.decode() in codec.protocol_error


@pytest.mark.parametrize("name", OPENINGS)
def test_half_an_object_between_runs_is_a_line_of_output(name: str) -> None:
    make, messages = OPENINGS[name]
    codec = make()
    codec.receive_lines([encoded(message) for message in messages])
    assert codec.receive(b'{"half": ') == [Stdout(line='{"half": ')]
    assert codec.protocol_error is None


@pytest.mark.parametrize(
    "line",
    [
        b'[debug] sent {"id": 3, "result": {"stopReason": "end_turn"}}',
        b'received: {"type": "result", "subtype": "success"}',
        b'event={"kind": "session_end", "exit_code": 0, "stop_reason": "end_turn"}',
        b'-> {"method": "turn/completed", "params": {"threadId": "t", "turn": {"id": "u", "status": "completed"}}}',
        b'call({"id": 3, "result": {"stopReason": "end_turn"}})',
        b"a { b } c",
        b'style{"color": red}',
        b"\x1b[31mred\x1b[0m",
    ],
)
@pytest.mark.parametrize("name", ANSWERS)
def test_a_line_that_speaks_of_an_object_is_a_line_of_output(name: str, line: bytes) -> None:
    codec = ANSWERS[name][0]()
    assert codec.receive(line) == [Stdout(line=line.decode())]
    assert codec.protocol_error is None and codec.run_result is None


@pytest.mark.parametrize(
    "line",
    [b'{"a": ' * 100_000, b"\x1b]" * 500_000, b"\x1b[" * 500_000, b'x{"' * 300_000, b'{"a":1}' * 100_000, b"\x1b[0;" * 200_000],
)
def test_a_long_line_takes_no_longer_than_its_length(line: bytes) -> None:
    parts, _ = line_parts(line)
    assert len(parts) <= 100_000
