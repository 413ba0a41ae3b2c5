"""The input of a call while the model writes it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drivers.claude.codec import ClaudeCodec
from drivers.claude.message_stream import MAX_PARSED, StreamedInput
from drivers.claude.tool_calls import TurnCalls
from drivers.claude.tools import Toolset
from drivers.contract.agent import Prompt
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import MessageEnd, OutputEvent, SessionEnd, ToolInput


def reported(text: str, size: int = 1) -> list[dict[str, Any]]:
    """What is reported of an input that comes in parts of this size."""
    writing = StreamedInput("1", "Write")
    parts = [text[n : n + size] for n in range(0, len(text), size)]
    return [found for part in parts if (found := writing.add(part)) is not None]


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ('{"file_path": "a.py", "content": "x', [{"file_path": "a.py"}]),
        ('{"a": "b", "c": "d", "e": "f"}', [{"a": "b"}, {"a": "b", "c": "d"}, {"a": "b", "c": "d", "e": "f"}]),
        ('{"offset": 12, "b": "x', []),
        ('{"offset": 12, "b": "x", "c": 1', [{"offset": 12, "b": "x"}]),
        ('{"edits": [{"old": "a"}, {"old": "b"}], "path": "x", "y', [{"edits": [{"old": "a"}, {"old": "b"}], "path": "x"}]),
        ('{"a": "quote \\" and } brace", "b"', [{"a": 'quote " and } brace'}]),
        ('{"a": {"b": "c"}', []),
        ("{}", []),
        ('["a", "b"', []),
        ('no "json" at all', []),
    ],
)
def test_members_are_reported_when_they_are_complete(text: str, members: list[dict[str, Any]]) -> None:
    assert reported(text) == members


def test_whole_input_is_not_reported() -> None:
    assert reported('{"command": "ls", "description": "List"}', size=1000) == []
    assert reported('{"command": "ls"}', size=16) == [{"command": "ls"}]


def test_long_input_is_not_parsed_to_its_end() -> None:
    text = json.dumps({"file_path": "a", "content": "x" * MAX_PARSED, "last": "y"})[:-1]
    assert reported(text, size=50) == [{"file_path": "a"}]


def stream(**event: Any) -> bytes:
    return json.dumps({"type": "stream_event", "parent_tool_use_id": None, "event": event}).encode()


def test_call_of_a_message_that_broke_off_is_discarded() -> None:
    codec = ClaudeCodec()
    codec.receive(b'{"type": "control_response", "response": {"subtype": "success", "request_id": "init", "response": {}}}')
    codec.prompt(Prompt("go"))
    start = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}
    events: list[OutputEvent] = []
    for line in (
        stream(type="message_start", message={"id": "m1"}),
        stream(type="content_block_start", index=0, content_block=start),
        stream(type="content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": '{"command": "ls", "d'}),
        stream(type="message_stop"),
        b'{"type": "result", "subtype": "success", "is_error": false}',
    ):
        events += codec.receive(line)
    assert events[:3] == [
        ToolInput(id="t1", name="Bash"), ToolInput(id="t1", name="Bash", input={"command": "ls"}), MessageEnd(discarded=True),
    ]  # fmt: skip
    assert isinstance(events[-1], SessionEnd)


@pytest.mark.parametrize(("mode", "announced"), [("default", False), (None, True)])
def test_plan_that_is_submitted_for_approval_is_not_announced(mode: str | None, announced: bool) -> None:
    calls = TurnCalls(Toolset([ToolGrant("ExitPlanMode")], mode=mode))
    assert bool(calls.written("t1", "ExitPlanMode", {})) is announced
