"""The codex codecs on unknown lines and on lines of an older format."""

from __future__ import annotations

import json

from drivers.codex.exec import CodexExecCodec
from drivers.contract.events import Error, SessionEnd, Stdout


def test_unknown_lines_are_stdout() -> None:
    for native in (
        {"type": "new_type"},
        {"type": "item.started", "item": {"id": "1", "type": "new_item"}},
        {"type": "item.completed", "item": {"type": "agent_message"}},
        {"type": "thread.started"},
        {"type": ["error"]},
        ["no object"],
    ):
        line = json.dumps(native)
        assert CodexExecCodec().receive(line.encode()) == [Stdout(line=line)]


def test_the_older_single_result_is_the_answer() -> None:
    codec = CodexExecCodec()
    events = codec.receive(b'{"type":"result","text":"the answer"}')
    assert [event.kind for event in events] == ["agent_token", "message_end"]
    (end,) = codec.exited(0, [])
    assert end.kind == "session_end" and getattr(end, "exit_code", None) == 0


def test_a_single_result_of_a_process_that_fails_is_no_success() -> None:
    codec = CodexExecCodec()
    codec.receive(b'{"type":"result","text":"half"}')
    *_, error, end = codec.exited(1, ["Error: out of memory"])
    assert error == Error(message="codex: out of memory")
    assert end == SessionEnd(exit_code=1, stop_reason="error")


def test_the_text_of_an_unknown_event_of_a_thread_is_no_answer() -> None:
    codec = CodexExecCodec()
    codec.receive(b'{"type":"thread.started","thread_id":"t"}')
    line = '{"type":"new_type","text":"a hint"}'
    assert codec.receive(line.encode()) == [Stdout(line=line)]
    assert codec.exited(0, [])[-1] == SessionEnd(exit_code=1, stop_reason="error")
