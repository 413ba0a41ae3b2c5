"""Events of a compaction, in addition to the golden events of its recordings."""

from __future__ import annotations

import json
from typing import Any

from drivers.claude.codec import ClaudeCodec
from drivers.contract.agent import Prompt
from drivers.contract.events import Compacted, OutputEvent
from tests.drivers.claude.recordings import ALL, play

BY_NAME = {transcript.name: transcript for transcript in ALL}


def found(events: list[list[OutputEvent]]) -> list[Compacted]:
    return [event for turn in events for event in turn if isinstance(event, Compacted)]


def test_the_compact_command_keeps_the_summary_only() -> None:
    (event,) = found(play(BY_NAME["compact"]))
    assert (event.trigger, event.tokens_before, event.kept) == ("manual", 149, 0)
    assert event.summary is not None and "I see 2 user texts. Before this one: x [[plain]]" in event.summary


def test_an_automatic_compaction_keeps_the_newest_messages_too() -> None:
    (event,) = found(play(BY_NAME["compact_auto"]))
    # The last answer and the prompt of this turn.
    assert (event.trigger, event.tokens_before, event.kept) == ("auto", 990044, 2)
    assert event.summary is not None and "I see 3 user texts" in event.summary


def running() -> ClaudeCodec:
    codec = ClaudeCodec()
    codec.receive(b'{"type":"control_response","response":{"request_id":"init"}}')
    codec.prompt(Prompt("x"))
    return codec


def feed(codec: ClaudeCodec, *natives: dict[str, Any]) -> list[OutputEvent]:
    return [event for native in natives for event in codec.receive(json.dumps(native).encode())]


def boundary(*kept: str) -> dict[str, Any]:
    return {"type": "system", "subtype": "compact_boundary", "compact_metadata": {"preserved_messages": {"uuids": kept}}}


def block(uuid: str, message: str, text: str) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"type": "assistant", "uuid": uuid, "message": {"id": message, "content": content}, "parent_tool_use_id": None}


SUMMARY = {"type": "user", "uuid": "s", "isSynthetic": True, "message": {"content": "Summed up."}, "parent_tool_use_id": None}


def test_the_blocks_of_a_message_are_one_message_and_lines_of_the_cli_are_none() -> None:
    codec = running()
    continued = {**SUMMARY, "uuid": "m", "message": {"content": "Continue."}}
    feed(codec, block("a1", "one", "1"), block("b1", "two", "2"), block("b2", "two", "3"), continued)
    (event,) = feed(codec, boundary("b1", "b2", "m", "prompt"), SUMMARY)
    assert event == Compacted(summary="Summed up.", kept=2)


def test_a_boundary_without_its_summary_is_an_empty_compaction() -> None:
    codec = running()
    result = {"type": "result", "subtype": "success", "is_error": False, "usage": {}}
    events = feed(codec, boundary(), result)
    assert [event.kind for event in events] == ["compacted", "session_end"]
    assert events[0] == Compacted()
    codec = running()
    tool_result = {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "1", "content": "x"}]}}
    assert Compacted() in feed(codec, boundary(), tool_result)
