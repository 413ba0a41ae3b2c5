"""The gemini codecs over recorded output: properties that the golden events have."""

from __future__ import annotations

import pytest

from drivers.contract.events import SessionEnd, ToolCall, ToolResult
from tests.drivers.gemini.recordings import ALL, Transcript, golden_lines, play

BY_NAME = {transcript.name: transcript for transcript in ALL}
every = pytest.mark.parametrize("transcript", ALL, ids=BY_NAME)


@every
def test_every_prompt_has_one_session_end(transcript: Transcript) -> None:
    events = play(transcript)
    prompts = 1 if transcript.once else sum(line.startswith(b"#prompt") for line in transcript.lines)
    assert sum(isinstance(event, SessionEnd) for event in events) == prompts
    assert isinstance(events[-1], SessionEnd)


@every
def test_every_result_is_between_the_start_and_the_end_of_its_call(transcript: Transcript) -> None:
    steps: dict[str, list[str]] = {}
    for event in play(transcript):
        if isinstance(event, ToolCall):
            steps.setdefault(event.id, []).append(event.status)
        elif isinstance(event, ToolResult):
            steps[event.tool_call_id].append("result")
    for taken in steps.values():
        assert taken in (["started"], ["started", "result", "completed"], ["started", "result", "failed"])


def test_the_replay_of_a_loaded_session_has_no_events() -> None:
    replayed = b"\n".join(BY_NAME["resume"].lines)
    assert b'"sessionUpdate":"user_message_chunk"' in replayed
    assert b"Hello from the model" in replayed
    assert b"Hello from the model" not in golden_lines(BY_NAME["resume"])
