"""The claude codec over recorded output: properties that the golden events have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from drivers.contract.events import (
    AgentToken,
    Hook,
    MessageEnd,
    OutputEvent,
    Subagent,
    Thinking,
    ToolCall,
    ToolResult,
    Usage,
)
from tests.drivers.claude.recordings import ALL, Transcript, play
from tests.drivers.small_programs import end_of

BY_NAME = {transcript.name: transcript for transcript in ALL}
every = pytest.mark.parametrize("transcript", ALL, ids=BY_NAME)
every_run = pytest.mark.parametrize(
    "transcript", [t for t in ALL if t.turns or t.once], ids=[t.name for t in ALL if t.turns or t.once]
)


@every_run
def test_every_turn_has_one_session_end_which_is_last(transcript: Transcript) -> None:
    turns = play(transcript)
    assert len(turns) == max(transcript.turns, 1)
    for turn in turns:
        end_of(turn)


def output_text(events: Sequence[OutputEvent], kind: type[AgentToken] | type[Thinking]) -> str:
    """The text of the output, without that of discarded messages."""
    counted, message = "", ""
    for event in events:
        if isinstance(event, kind):
            message += event.text
        elif isinstance(event, MessageEnd):
            counted += "" if event.discarded else message
            message = ""
    return counted + message


def model_output(native: Sequence[dict[str, Any]], kind: str) -> str:
    return "".join(
        block[kind]
        for line in native
        if line["type"] == "assistant" and not line["parent_tool_use_id"] and line["message"]["model"] != "<synthetic>"
        for block in line["message"]["content"]
        if block["type"] == kind
    )


# Of a broken message claude prints only the complete blocks; the streamed rest is kept.
STREAMED_ONLY = {
    "cut_no_fallback": "this stream is cut after",
    "oneshot_cut_after_text": "Second is a long one tha",
    "oneshot_cut_after_tool": ("While it runs, " * 17)[:160],
}


@every_run
def test_the_text_equals_the_output_of_the_model(transcript: Transcript) -> None:
    events = [event for turn in play(transcript) for event in turn]
    if transcript.name == "agent_background":
        # Its second result belongs to a turn without a prompt.
        assert output_text(events, AgentToken) == "Delegating. The sub-agent was started."
        return
    streamed_only = STREAMED_ONLY.get(transcript.name, "")
    assert streamed_only in output_text(events, AgentToken)
    assert output_text(events, AgentToken).replace(streamed_only, "", 1) == model_output(transcript.natives, "text")
    assert output_text(events, Thinking) == model_output(transcript.natives, "thinking")


@every_run
def test_a_call_is_started_then_has_its_result_then_is_over(transcript: Transcript) -> None:
    life: dict[str, list[str]] = {}
    for turn in play(transcript):
        for event in turn:
            if isinstance(event, ToolCall):
                assert event.name
                life.setdefault(event.id, []).append(event.status)
                assert (event.input is not None) == (event.status == "started")
            elif isinstance(event, ToolResult):
                life.setdefault(event.tool_call_id, []).append("failed" if event.is_error else "completed")
    for id_, steps in life.items():
        if transcript.name == "agent_background" and steps == ["started"]:
            continue  # The call of the sub-agent, which continues after the turn.
        assert steps in (["started", "completed", "completed"], ["started", "failed", "failed"]), id_


@every_run
def test_results_come_after_the_message_that_called(transcript: Transcript) -> None:
    for turn in play(transcript):
        calling = False
        for event in turn:
            if isinstance(event, ToolCall) and event.status == "started" and event.parent_id is None:
                calling = True
            elif isinstance(event, MessageEnd):
                calling = False
            elif isinstance(event, ToolResult) and event.parent_id is None:
                assert not calling


@every_run
def test_the_tokens_of_the_turns_add_up_to_the_sessions(transcript: Transcript) -> None:
    usages = [event for turn in play(transcript) for event in turn if isinstance(event, Usage)]
    if transcript.once:
        assert len(usages) == len(transcript.results)
    total = transcript.results[-1]["modelUsage"].values()
    assert sum(usage.input_tokens for usage in usages) == sum(model["inputTokens"] for model in total)
    assert sum(usage.output_tokens for usage in usages) == sum(model["outputTokens"] for model in total)
    assert sum(usage.cache_read for usage in usages) == sum(model["cacheReadInputTokens"] for model in total)
    assert sum(usage.cache_write for usage in usages) == sum(model["cacheCreationInputTokens"] for model in total)


ENDS = {
    "e401": [(1, "error"), (0, "end_turn")],
    "e401_retry": [(1, "error")],
    "e500": [(1, "error"), (0, "end_turn")],
    "e500_retry": [(1, "error")],
    "cut_no_fallback": [(1, "error"), (0, "end_turn")],
    "interrupt": [(0, "end_turn"), (130, "cancelled"), (0, "end_turn")],
    "interrupt_permission": [(130, "cancelled")],
    "interrupt_tool": [(130, "cancelled")],
    "maxtok": [(1, "max_tokens"), (0, "end_turn")],
    "oneshot_e401": [(1, "error")],
    "oneshot_e500": [(1, "error")],
    "refusal": [(1, "refusal"), (0, "end_turn")],
}


@every_run
def test_how_the_turns_end(transcript: Transcript) -> None:
    turns = play(transcript)
    ends = [(end_of(turn).exit_code, end_of(turn).stop_reason) for turn in turns]
    assert ends == ENDS.get(transcript.name, [(0, "end_turn")] * len(turns))
    for turn, (_, reason) in zip(turns, ends, strict=True):
        # A failed turn has an error; an interrupted turn can have one.
        assert [event.kind for event in turn].count("error") == (reason in ("error", "max_tokens", "refusal"))


def test_the_sub_agents_calls_name_their_parent() -> None:
    (events,) = play(BY_NAME["agent"])
    calls = [event for event in events if isinstance(event, ToolCall) and event.status == "started"]
    assert [(call.name, call.parent_id) for call in calls] == [("Agent", None), ("Bash", calls[0].id)]
    agents = [event for event in events if isinstance(event, Subagent)]
    assert [(event.id, event.status) for event in agents] == [(calls[0].id, "started"), (calls[0].id, "completed")]
    assert {event.label for event in agents} == {"sub"}


def test_lifecycle_hooks_are_left_out() -> None:
    (events,) = play(BY_NAME["hooks"])
    hooks = [(event.name, event.status) for event in events if isinstance(event, Hook)]
    names = ["UserPromptSubmit", "PreToolUse:Bash", "PostToolUse:Bash"]
    assert hooks == [(name, status) for name in names for status in ("started", "completed")]
    assert not any(isinstance(event, Hook) for event in play(BY_NAME["hooks_default"])[0])


def test_a_retried_message_is_discarded() -> None:
    for name in ("cut", "cut_retry"):
        (events,) = play(BY_NAME[name])
        assert [event.discarded for event in events if isinstance(event, MessageEnd)] == [True, False]


def test_a_call_of_a_message_that_broke_later_is_kept() -> None:
    (events,) = play(BY_NAME["oneshot_cut_after_tool"])
    assert [event.discarded for event in events if isinstance(event, MessageEnd)] == [False, False]
