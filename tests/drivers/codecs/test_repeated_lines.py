"""Lines that are read at once give what they give one by one, also those that almost repeat the line before."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from drivers.claude.codec import ClaudeCodec
from drivers.codecs.repeated_lines import RepeatedDelta
from drivers.contract.agent import Prompt
from drivers.contract.codec import Codec
from drivers.contract.events import AgentToken, OutputEvent, Thinking
from tests.drivers.acp.small_agent import Agent
from tests.drivers.claude.cli import Cli


def acp_codec() -> Codec:
    agent = Agent()
    agent.open()
    agent.codec.prompt(Prompt("go"))
    return agent.codec


def claude_codec() -> ClaudeCodec:
    cli = Cli()
    cli.take({"type": "stream_event", "event": {"type": "message_start", "message": {"id": "m"}}})
    return cli.codec


def acp(text: Any, kind: str = "agent_message_chunk", session: str = "s", **members: Any) -> bytes:
    update = {"sessionUpdate": kind, "content": {"type": "text", "text": text}, **members}
    message = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}}
    return json.dumps(message, ensure_ascii=False).encode()


def claude(text: Any, uuid: Any = "u-1", name: str = "text", **members: Any) -> bytes:
    delta = {"type": f"{name}_delta", name: text}
    event = {"type": "content_block_delta", "index": 0, "delta": delta}
    message = {"type": "stream_event", "event": event, "session_id": "x", "parent_tool_use_id": None, "uuid": uuid, **members}
    return json.dumps(message, ensure_ascii=False).encode()


TEXTS = ["one ", "two ", 'a "quoted" \\ word', "line\nline", "é 😀 \u2028", "", "\x7f"]
ESCAPED = (b"\\u0041", b"\\ud83d", b"\\x", b"\\/", b"\\")
ACP_LINES = [
    [acp(f"{n} ") for n in range(6)],
    [acp(text) for text in TEXTS] * 2,
    [acp(f"{n} ", "agent_thought_chunk" if n // 3 % 2 else "agent_message_chunk") for n in range(12)],
    [acp("a "), acp("b "), acp("c ", session="other"), acp("d "), acp("e ", "user_message_chunk"), acp("f ")],
    [*(acp(f"{n} ", messageId=f"m{n // 3}") for n in range(9)), acp("x "), acp("y "), acp("z ", messageId="m2")],
    # The text is in the line twice, or is another member's value, or a member is there twice.
    [acp("text"), acp("text"), acp("update"), acp("s"), acp("t "), acp("u ")],
    [acp("a ").replace(b'"text": "a "', b'"text": "a ", "text": "b "')] * 5,
    # Not UTF-8, not JSON, escaped, half of a surrogate pair, blank.
    [acp("a "), acp("b "), acp("c ").replace(b"c ", b"\xff\xfe"), acp("d "), acp("e ")],
    [acp("a "), acp("b "), acp("c ").replace(b"c ", b"c\t"), acp("d ")[:-1], acp("e "), acp("f ") + b"x", acp("g ")],
    [
        acp("a "),
        acp("b "),
        *(acp("c ").replace(b"c ", esc) for esc in (b"\\u0041", b"\\ud83d", b"\\x", b"\\/", b"\\")),
        acp("d "),
    ],
    [acp("a "), acp("b "), b"", b"  ", b"log line", acp("c "), acp("d ")],
    [acp("a "), acp("b "), acp(1), acp(None), acp({"text": "c "}), acp("d ")],
]
CLAUDE_LINES = [
    [claude(f"{n} ", f"u-{n}") for n in range(6)],
    [claude(text, f"u-{n}") for n, text in enumerate(TEXTS * 2)],
    [claude(f"{n} ", f"u-{n}", "thinking" if n // 3 % 2 else "text") for n in range(12)],
    [claude("a "), claude("b "), claude("c ", None), claude("d ", 1), claude("e ", 'u"'), claude("f ", ["u"]), claude("g ")],
    *(
        [claude("a "), claude("b "), claude("c ").replace(b"u-1", uuid), claude("d "), claude("e ")]
        for uuid in (b"\xff", b"\t", b"\\n", b"\\", "é".encode())
    ),
    [claude("u-1"), claude("u-1"), claude("u-2"), claude("x "), claude("y ")],
    # Both strings have the same value, and one of them is escaped.
    [claude("u-1").replace(b'"text": "u-1"', b'"text": "\\u0075-1"'), *(claude(f"{n} ") for n in range(4))],
    [claude("u-1").replace(b'"uuid": "u-1"', b'"uuid": "\\u0075-1"'), *(claude(f"{n} ") for n in range(4))],
    [claude("a "), claude("b "), b'{"type": "stream_event", "event": {"type": "message_stop"}}', claude("c "), claude("d ")],
    [
        claude("a "),
        claude("b "),
        claude("c ", name="input_json"),
        claude("d "),
        claude("e "),
    ],
    [claude(f"{n} ", user_message_uuid=f"u-{n}") for n in range(5)],
]


@pytest.mark.parametrize(
    ("codec", "lines"), [*((acp_codec, lines) for lines in ACP_LINES), *((claude_codec, lines) for lines in CLAUDE_LINES)]
)
def test_lines_that_are_read_at_once_give_the_same_events(codec: Callable[[], Codec], lines: list[bytes]) -> None:
    single, batch = codec(), codec()
    expected: list[OutputEvent] = []
    for line in lines:
        expected += single.receive(line) if single.protocol_error is None else []
    events = batch.receive_lines(lines)
    assert events == expected and batch.protocol_error == single.protocol_error
    assert [type(event) for event in events] == [type(event) for event in expected]
    assert [event.encode() for event in events] == [event.encode() for event in expected]
    assert (batch.phase, batch.outbox, batch.pending) == (single.phase, single.outbox, single.pending)


@pytest.mark.parametrize("codec", [acp_codec, claude_codec])
def test_deltas_of_an_idle_session_stay_without_an_event(codec: Callable[[], Codec]) -> None:
    lines = [acp("a ")] * 6 if codec is acp_codec else [claude("a ")] * 6
    between = codec()
    between.phase = "ready"
    once = codec()
    once.phase = "ready"
    assert between.receive_lines(lines) == [event for line in lines for event in once.receive(line)]


def test_lines_after_one_that_cannot_be_followed_are_not_read() -> None:
    codec = acp_codec()
    events = codec.receive_lines(
        [acp("a "), acp("b "), b'{"id": 3, "result": ', b'{"jsonrpc": "2.0", "id": {}, "result": {}}', acp("c ")]
    )
    assert codec.protocol_error is not None
    assert AgentToken(text="c ") not in events


PATH = ("params", "update", "content", "text")


def test_repeated_lines_are_read_until_one_does_not_repeat_the_first() -> None:
    lines = [acp("a "), acp("b\\n"), acp("c", "agent_thought_chunk"), acp("d ")]
    repeated = RepeatedDelta.of(lines[0], AgentToken(text="a "), PATH)
    assert repeated is not None
    expected: list[OutputEvent] = [AgentToken(text="b\\n")]
    assert repeated.read(lines, 1) == expected
    assert repeated.read(lines, 2) == []
    assert repeated.read(lines, 4) == []
    unread = RepeatedDelta.of(claude("a ", "1", "thinking"), Thinking(text="a "), ("event", "delta", "thinking"), ("uuid",))
    assert unread is not None
    assert unread.read([claude("b ", "2", "thinking")], 0) == [Thinking(text="b ")]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (acp("text"), "text"),
        (acp('"'), '"'),
        (acp("a ").replace(b'"text": "a "', b'"text": "a ", "text": "b "'), "a "),
        (acp("a ").replace(b'"text": "a "', b'"text": "a ", "text": "a "'), "a "),
        (acp("a ").replace(b'"text": "a "', b'"text": "a ", "text": "\\u0061 "'), "a "),
        (acp("a ") + b"x", "a "),
        (acp("a ").replace(b": ", b":").replace(b", ", b",").replace(b"a ", b","), ","),
    ],
)
def test_a_line_whose_text_is_not_at_a_certain_place_is_no_template(line: bytes, text: str) -> None:
    assert RepeatedDelta.of(line, AgentToken(text=text), PATH) is None


def test_text_of_many_escapes_is_read_in_the_memory_of_a_few_lines() -> None:
    repeated = RepeatedDelta.of(acp("a "), AgentToken(text="a "), PATH)
    assert repeated is not None
    line = acp("\n" * 50_000)
    tracemalloc.start()
    try:
        events = repeated.read([line], 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    expected: list[OutputEvent] = [AgentToken(text="\n" * 50_000)]
    assert events == expected
    assert peak < 10 * len(line)
