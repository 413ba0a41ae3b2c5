"""The oracles of the fault campaigns find what they are for, in logs that are wrong in one way each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults import oracles
from tests.faults.launcher import describe, is_write
from tests.support.sse import NumberedEvent as Frame
from tests.support.sse import StreamParser, numbered


def delta(number: str, text: str) -> Frame:
    return number, "text_delta", {"delta": text}


GAP: Frame = ("9", "gap", {"from": 4, "to": 9, "reason": "lost"})
LOG = [("1", "turn_start", {}), delta("2", "a"), delta("3", "b"), GAP, ("10", "turn_stop", {"stopReason": "error"})]


def test_frames_in_the_log_or_in_a_gap_are_accounted_for() -> None:
    assert oracles.seen_in_log([*LOG[:3], delta("4", "c"), delta("9.1", "d"), LOG[4]], LOG) == []


@pytest.mark.parametrize("frame", [delta("3", "x"), delta("11", "c"), ("3", "thinking_delta", {"delta": "b"}), delta("2.1", "a")])
def test_frame_that_the_log_does_not_have_is_reported(frame: Frame) -> None:
    (problem,) = oracles.seen_in_log([frame], LOG)
    assert f"frame {frame[0]}" in problem


def test_frame_in_a_gap_is_reported_where_none_may_be_lost() -> None:
    assert oracles.seen_in_log([*LOG], LOG, gaps=False) == []
    (problem,) = oracles.seen_in_log([delta("4", "c")], LOG, gaps=False)
    assert "frame 4" in problem


def test_ids_increase_with_the_parts_of_an_event_before_its_last_frame() -> None:
    assert oracles.numbers_increase([delta("1", ""), delta("2.1", ""), delta("2.2", ""), delta("2", ""), delta("5", "")]) == []
    assert oracles.numbers_increase([delta("1", ""), delta("1", "")])
    assert oracles.numbers_increase([delta("2", ""), delta("2.1", "")])


CALL = {"type": "tool_use", "toolCallId": "c1", "name": "act", "input": {}}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}, CALL]},
    {"role": "tool", "toolCallId": "c1", "content": "done"},
    {"role": "assistant", "content": "b"},
]
STREAM: list[Frame] = [
    ("1.1", "client_message", HISTORY[0]),
    ("1", "turn_start", {}),
    ("2.1", "thinking", {"thinking": "hm"}),
    ("3.1", "text", {"text": "a"}),
    ("3", "tool_call", {"toolCallId": "c1", "name": "act", "input": {}}),
    ("4", "turn_stop", {"stopReason": "tool_use"}),
    ("5.1", "client_message", {"role": "tool_permission", "toolCallId": "c1", "granted": True}),
    ("5", "turn_start", {}),
    ("6", "tool_result", {"toolCallId": "c1", "content": "done"}),
    ("7.1", "text", {"text": "b"}),
    ("7", "turn_stop", {"stopReason": "end_turn"}),
]


def test_history_is_the_fold_of_its_log() -> None:
    assert oracles.history_is_log(HISTORY, STREAM) == []


@pytest.mark.parametrize("n", range(len(HISTORY)))
def test_history_without_a_message_of_the_log_is_reported(n: int) -> None:
    assert oracles.history_is_log(HISTORY[:n] + HISTORY[n + 1 :], STREAM)


def test_history_with_a_message_twice_is_reported() -> None:
    assert oracles.history_is_log([*HISTORY, HISTORY[-1]], STREAM)
    assert oracles.history_is_log(HISTORY, [*STREAM, STREAM[-2]])


def test_cancelled_calls_need_no_result_in_the_log() -> None:
    cancelled = [*HISTORY[:2], {"role": "tool", "toolCallId": "c1", "content": oracles.CANCELLED}, HISTORY[3]]
    assert oracles.history_is_log(cancelled, [frame for frame in STREAM if frame[1] != "tool_result"]) == []


def test_prompt_that_was_given_twice_is_reported() -> None:
    log = [
        {"id": "p1", "type": "prompt", "go_on": False},
        {"id": "c1", "type": "reply", "go_on": False},
        {"id": "c1", "type": "reply", "go_on": False},
        {"id": "go-on", "type": "prompt", "go_on": True},
        {"id": "go-on", "type": "prompt", "go_on": True},
    ]
    assert oracles.given_once(log) == []
    assert oracles.given_once([*log, log[0]]) == ["prompt p1 was given 2 times"]


@pytest.mark.parametrize("text", ["<p1:0><p2:0>", "<p1:1>", "<p1:0><p1:0>", "<p1:0><p1:2>", "<p1:0>"])
def test_answer_to_another_prompt_or_with_parts_missing_is_reported(text: str) -> None:
    assert oracles.answers_only("p1", "<p1:0> and <p1:1>", 2) == []
    assert oracles.answers_only("p1", text, 2)


def test_turn_has_one_stop_at_its_end() -> None:
    assert oracles.ends_once([LOG[0], LOG[4]]) == []
    assert oracles.ends_once(LOG[:2]) and oracles.ends_once([LOG[4], LOG[4]]) and oracles.ends_once([LOG[4], LOG[0]])


def test_incomplete_last_frame_of_a_stream_is_left_out() -> None:
    stream = b': keep-alive\n\nevent: turn_start\ndata: {}\nid: 1\n\nevent: text_delta\ndata: {"delta": "a"}\nid: 2\n\nevent: te'
    assert numbered(stream) == [("1", "turn_start", {}), ("2", "text_delta", {"delta": "a"})]
    assert oracles.text_of(numbered(stream)) == "a"


@pytest.mark.parametrize(
    ("statement", "description"),
    [
        ("INSERT INTO runs (id) VALUES (?)", "INSERT runs"),
        ("\nCREATE TABLE audit (\n id INTEGER)", "CREATE audit"),
        ("CREATE UNIQUE INDEX IF NOT EXISTS newest ON runs (id)", "CREATE newest"),
        ("DELETE FROM failures WHERE failures.session_id = ?", "DELETE failures"),
    ],
)
def test_write_is_described_by_its_verb_and_table(statement: str, description: str) -> None:
    assert is_write(statement)
    assert describe(statement) == description
    assert not is_write("SELECT 1") and not is_write("BEGIN IMMEDIATE")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_stream_is_parsed_while_it_is_received(size: int) -> None:
    stream = b": keep-alive\n\nid: 1\nevent: text_delta\ndata: {}\n\nid: 2\nevent: turn_stop\ndata: {}\n\nid: 3\nevent: cut"
    parser = StreamParser()
    received = [frame for n in range(0, len(stream), size) for frame in parser.feed(stream[n : n + size])]
    assert received == [("1", "text_delta", {}), ("2", "turn_stop", {})] == numbered(stream)
