"""The codex codecs on unknown lines and on lines of an older format."""

from __future__ import annotations

import json

from drivers.codex.exec import CodexExecCodec
from drivers.contract.events import Stdout


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
