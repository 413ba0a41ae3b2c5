"""Responses of a handshake and ends of runs that do not have the expected shape: a protocol error that quotes the line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from drivers.acp.codec import AcpCodec
from drivers.acp.handshake import SessionRequest
from drivers.acp.permissions import Grants
from drivers.claude.codec import ClaudeCodec
from drivers.codecs.output_event_lines import EventLineCodec
from drivers.codex import grants
from drivers.codex.app_server import CodexAppCodec
from drivers.codex.handshake import SessionRequest as CodexSessionRequest
from drivers.contract.agent import Prompt
from drivers.contract.codec import Codec
from drivers.contract.events import Error, OutputEvent, SessionEnd, Usage
from drivers.contract.line_splitter import EXCERPT

Json = dict[str, Any]


def acp() -> AcpCodec:
    return AcpCodec(SessionRequest("/work"), Grants())


def codex() -> CodexAppCodec:
    return CodexAppCodec(CodexSessionRequest(grants.Grants.of((), "", ("/work",)), {"cwd": "/work", "config": {}}))


def feed(codec: Codec, *messages: Json | bytes) -> list[OutputEvent]:
    lines = (message if isinstance(message, bytes) else json.dumps(message).encode() for message in messages)
    return [event for line in lines for event in codec.receive(line)]


def acp_running() -> AcpCodec:
    codec = acp()
    feed(codec, {"id": 1, "result": {"protocolVersion": 1}}, {"id": 2, "result": {"sessionId": "s"}})
    codec.prompt(Prompt("go"))
    return codec


def codex_running() -> CodexAppCodec:
    codec = codex()
    feed(codec, {"id": 1, "result": {}}, {"id": 2, "result": {"config": {}}}, {"id": 3, "result": {"thread": {"id": "t"}}})
    codec.prompt(Prompt("go"))
    feed(codec, {"id": 4, "result": {"turn": {"id": "u"}}})
    feed(codec, {"method": "turn/started", "params": {"threadId": "t", "turn": {"id": "u"}}})
    return codec


def claude_running() -> ClaudeCodec:
    codec = ClaudeCodec()
    feed(codec, {"type": "control_response", "response": {"subtype": "success", "request_id": "init", "response": {}}})
    codec.prompt(Prompt("go"))
    return codec


def event_lines_running() -> EventLineCodec:
    codec = EventLineCodec()
    feed(codec, {"kind": "native_session"})
    codec.prompt(Prompt("go"))
    return codec


OPEN = {"id": 1, "result": {"protocolVersion": 1}}
CODEX_OPEN = ({"id": 1, "result": {}}, {"id": 2, "result": {"config": {}}})


@pytest.mark.parametrize(
    ("codec", "messages"),
    [
        (acp, [{"id": 1, "result": {"protocolVersion": "one"}}]),
        (acp, [{"id": 1, "result": {}}]),
        (acp, [{"id": 1, "result": "fine"}]),
        (acp, [{"jsonrpc": "2.0", "id": 1}]),
        (acp, [{"id": 7, "result": {"protocolVersion": 1}}]),
        (acp, [{"id": "1", "result": {"protocolVersion": 1}}]),
        (acp, [{"jsonrpc": "2.0", "result": {"protocolVersion": 1}}]),
        (acp, [{"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}}]),
        (acp, [b'{"jsonrpc": "2.0", "id": 1, "result": {"proto']),
        (acp, [OPEN, {"id": 2, "result": {}}]),
        (acp, [OPEN, {"id": 2, "result": {"sessionId": 5}}]),
        (acp, [OPEN, {"id": 2, "result": {"sessionId": "s", "modes": {"current": "x"}}}]),
        (acp, [OPEN, {"id": 2, "result": {"sessionId": "s", "models": {"availableModels": [{}]}}}]),
        (acp, [OPEN, {"id": 2, "result": {"sessionId": "s", "configOptions": ["x"]}}]),
        (codex, [{"id": 9, "result": {}}]),
        (codex, [{"result": {}}]),
        (codex, [{"id": 1, "result": {}}, {"id": 2, "result": {}}]),
        (codex, [*CODEX_OPEN, {"id": 3, "result": {"thread": "t"}}]),
        (codex, [*CODEX_OPEN, {"id": 3, "result": {"thread": {}}}]),
        (ClaudeCodec, [{"type": "control_response"}]),
        (ClaudeCodec, [{"type": "control_response", "response": {"subtype": "success"}}]),
        (ClaudeCodec, [{"type": "control_response", "response": {"subtype": "success", "request_id": "other"}}]),
        (ClaudeCodec, [{"type": "result", "errors": 5}]),
        (EventLineCodec, [{"kind": "native_session", "native_id": 5}]),
        (acp_running, [{"jsonrpc": "2.0", "result": {"stopReason": "end_turn"}}]),
        (acp_running, [{"id": 8, "result": {"stopReason": "end_turn"}}]),
        (acp_running, [{"id": 3, "result": {}}]),
        (acp_running, [{"id": 3, "result": "end_turn"}]),
        (acp_running, [{"id": 3, "result": ["end_turn"]}]),
        (acp_running, [{"id": 3, "result": None}]),
        (acp_running, [{"id": 3, "result": {"stopReason": None, "usage": {}}}]),
        (acp_running, [{"id": 3, "result": {"stopReason": 5}}]),
        (codex_running, [{"method": "turn/completed", "params": {"threadId": "t", "turn": {"id": "u"}}}]),
        (codex_running, [{"method": "turn/completed", "params": {}}]),
        (codex_running, [{"method": "turn/completed"}]),
        (claude_running, [{"type": "result", "is_error": True, "errors": 5}]),
        (event_lines_running, [{"kind": "session_end"}]),
        (event_lines_running, [{"kind": "session_end", "exit_code": 0, "stop_reason": "banana"}]),
        (event_lines_running, [{"kind": "awaiting", "calls": "all"}]),
    ],
)
def test_what_a_run_cannot_go_on_without_is_a_protocol_error(codec: Callable[[], Codec], messages: list[Json | bytes]) -> None:
    made = codec()
    phase = made.phase
    feed(made, *messages)
    assert made.phase == phase
    last = messages[-1] if isinstance(messages[-1], bytes) else json.dumps(messages[-1]).encode()
    assert made.protocol_error is not None and last.decode() in made.protocol_error


@pytest.mark.parametrize("codec", [acp, codex, ClaudeCodec, EventLineCodec, acp_running, codex_running, claude_running])
@pytest.mark.parametrize(
    "line",
    [
        b'{"level": "error", "error": "no cache", "id_of": 3}',
        b'{"level": "info", "msg": "started"}',
        b"a banner",
        b"{",
        b'{"type": "new", "result": 1}',
        b'{"method": "new/notification", "params": {}}',
    ],
)
def test_other_lines_are_no_protocol_error(codec: Callable[[], Codec], line: bytes) -> None:
    made = codec()
    feed(made, line)
    assert made.protocol_error is None and made.start_error is None


def test_the_end_of_the_process_reports_the_protocol_error() -> None:
    codec = acp_running()
    feed(codec, {"jsonrpc": "2.0", "result": {}})
    error, end = codec.exited(-9, [])
    assert isinstance(error, Error) and error.message == codec.protocol_error
    assert isinstance(end, SessionEnd) and end.exit_code and end.stop_reason == "error"


def test_a_long_line_is_cut_between_words() -> None:
    codec = ClaudeCodec()
    feed(codec, {"type": "control_response", "x": "a " * (EXCERPT // 2 - 40) + "secret-" * 100})
    assert codec.protocol_error is not None
    assert len(codec.protocol_error) < EXCERPT + 60 and codec.protocol_error.endswith("a …")
    assert "secret-" not in codec.protocol_error


@pytest.mark.parametrize("reason", ["paused_for_lunch", ""])
def test_an_unknown_stop_reason_ends_the_run_with_its_usage(reason: str) -> None:
    usage = {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}
    events = feed(acp_running(), {"id": 3, "result": {"stopReason": reason, "usage": usage}})
    assert events == [
        Usage(input_tokens=3, output_tokens=4),
        Error(message=f"the agent stopped for a reason that is not known: {reason}"),
        SessionEnd(exit_code=1, stop_reason="error"),
    ]


def test_an_interrupted_run_may_end_without_a_stop_reason() -> None:
    codec = acp_running()
    codec.interrupt()
    assert feed(codec, {"id": 3, "result": {}}) == [SessionEnd(exit_code=130, stop_reason="cancelled")]


def test_an_unknown_turn_status_is_an_error() -> None:
    turn = {"id": "u", "status": "evaporated"}
    events = feed(codex_running(), {"method": "turn/completed", "params": {"threadId": "t", "turn": turn}})
    assert events == [
        Error(message="codex: the turn ended with the status 'evaporated', which is not known"),
        SessionEnd(exit_code=1, stop_reason="error"),
    ]
