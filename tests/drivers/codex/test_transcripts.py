"""The codex codecs over recorded output: properties that the golden events have."""

from __future__ import annotations

import json

import pytest

from drivers.contract.events import (
    AgentToken,
    Awaiting,
    Compacted,
    MessageEnd,
    SessionEnd,
    Title,
    ToolCall,
    ToolResult,
    Usage,
)
from tests.drivers.codex.recordings import ALL, Transcript, act, action, play

BY_NAME = {transcript.name: transcript for transcript in ALL}
every = pytest.mark.parametrize("transcript", ALL, ids=BY_NAME)


@every
def test_every_turn_has_one_session_end_which_is_last(transcript: Transcript) -> None:
    turns = play(transcript)
    assert len(turns) == max(transcript.turns, 1)
    for turn in turns:
        assert [event.kind for event in turn].count("session_end") == 1
        assert isinstance(turn[-1], SessionEnd)


@every
def test_a_call_is_started_then_has_its_result_then_is_over(transcript: Transcript) -> None:
    life: dict[str, list[str]] = {}
    for turn in play(transcript):
        for event in turn:
            if isinstance(event, ToolCall):
                assert event.name and (event.input is not None) == (event.status == "started")
                life.setdefault(event.id, []).append(event.status)
            elif isinstance(event, ToolResult):
                life.setdefault(event.tool_call_id, []).append("failed" if event.is_error else "completed")
    stopped = transcript.name.startswith("interrupt")
    for steps in life.values():
        with_result = (["started", "completed", "completed"], ["started", "failed", "failed"])
        assert (
            steps in with_result
            or (transcript.app and steps == ["started", "completed"])
            or (stopped and steps[1:] == ["failed"])
        )


@every
def test_an_awaiting_event_names_the_pending_calls_and_is_the_last_until_they_are_answered(transcript: Transcript) -> None:
    codec = transcript.codec()
    open_calls: set[str] = set()
    for line in transcript.lines:
        action_fields = action(line)
        if action_fields is None:
            assert not (codec.receive(line) and open_calls)
        elif "settle" in action_fields:
            *_, awaiting = codec.debounced_events()
            assert isinstance(awaiting, Awaiting) and not open_calls
            open_calls = {call.id for call in awaiting.calls}
        elif "interrupt" in action_fields or "prompt" in action_fields:
            return
        else:
            open_calls.discard(action_fields.get("permission") or action_fields["result"])


@every
def test_the_tokens_of_the_turns_add_up_to_the_threads(transcript: Transcript) -> None:
    if transcript.once:
        return
    natives = [json.loads(line) for line in transcript.lines]
    total = [n["params"]["tokenUsage"]["total"] for n in natives if n.get("method") == "thread/tokenUsage/updated"][-1]
    usages = [event for turn in play(transcript) for event in turn if isinstance(event, Usage)]
    assert sum(u.input_tokens + u.cache_read + u.cache_write for u in usages) == total["inputTokens"]
    assert sum(u.output_tokens for u in usages) == total["outputTokens"]


ENDS = {
    "e400": [(1, "error"), (0, "end_turn")],
    "e401": [(1, "error"), (0, "end_turn")],
    "e500": [(1, "error"), (0, "end_turn")],
    "exec_e400": [(1, "error")],
    "exec_e401": [(1, "error")],
    "exec_maxtok": [(1, "max_tokens")],
    "interrupt": [(130, "cancelled"), (0, "end_turn")],
    "interrupt_tool": [(130, "cancelled"), (0, "end_turn")],
    "interrupt_waiting": [(130, "cancelled"), (0, "end_turn")],
    "maxtok": [(1, "max_tokens"), (0, "end_turn")],
    "refusal": [(1, "refusal"), (0, "end_turn")],
}


@every
def test_how_the_turns_end(transcript: Transcript) -> None:
    turns = play(transcript)
    ends = [(turn[-1].exit_code, turn[-1].stop_reason) for turn in turns if isinstance(turn[-1], SessionEnd)]
    assert ends == ENDS.get(transcript.name, [(0, "end_turn")] * len(turns))
    for turn, (exit_code, _) in zip(turns, ends, strict=True):
        assert [event.kind for event in turn].count("error") == (exit_code == 1)


@pytest.mark.parametrize("name", ["stopped", "code_stopped"])
def test_each_command_is_reported_once_whether_it_has_an_item_or_not(name: str) -> None:
    lines = [json.loads(line) for line in BY_NAME[name].lines]
    items = [line["params"]["item"] for line in lines if line.get("method") == "item/started"]
    made = [line["params"]["item"] for line in lines if line.get("method") == "rawResponseItem/completed"]
    with_item = sum(item["type"] == "commandExecution" for item in items)
    made_by_model = sum(item["type"] in ("function_call", "custom_tool_call") for item in made)
    assert 0 < with_item < made_by_model
    calls = [event for turn in play(BY_NAME[name]) for event in turn if isinstance(event, ToolCall)]
    assert [call.status == "started" for call in calls] == [True, False] * made_by_model


def test_a_retried_message_is_discarded() -> None:
    (events,) = play(BY_NAME["cutonce"])
    assert [event.discarded for event in events if isinstance(event, MessageEnd)] == [True, False]


def test_a_command_in_the_background_has_its_result_before_the_model_goes_on() -> None:
    events = play(BY_NAME["background"])[0]
    kinds = [event.kind for event in events if isinstance(event, ToolCall | ToolResult | AgentToken)]
    assert kinds == ["tool_call", "tool_result", "tool_call", "agent_token"]


def test_a_compaction_is_reported_without_its_history() -> None:
    codec = BY_NAME["three_turns"].codec()
    for line in BY_NAME["three_turns"].lines:
        action_fields = action(line)
        _ = codec.receive(line) if action_fields is None else act(codec, action_fields)
        if b'"turn/started"' in line:
            params = json.loads(line)["params"]
            break
    item = {"type": "contextCompaction", "id": "1"}
    item_params = {"item": item, "threadId": params["threadId"], "turnId": params["turn"]["id"]}
    assert codec.receive(json.dumps({"method": "item/started", "params": item_params}).encode()) == []
    assert codec.receive(json.dumps({"method": "item/completed", "params": item_params}).encode()) == [Compacted()]
    # The name of the thread is reported too; that of another thread is not.
    for thread, events in ((params["threadId"], [Title(text="A name")]), ("another", [])):
        named = {"method": "thread/name/updated", "params": {"threadId": thread, "threadName": "A name"}}
        assert codec.receive(json.dumps(named).encode()) == events
