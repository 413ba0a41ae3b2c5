"""The codex codecs on output that is cut, doubled, shuffled or has parts missing: they never raise, and a run still ends once."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from drivers.base import Prompt, ToolReply
from drivers.codex_exec import CodexExecCodec
from drivers.events import Event, OutputEvent, Stdout, decode
from tests.drivers.codex_transcripts import ALL, Transcript, action

Lines = list[bytes]
ODD: tuple[Any, ...] = (None, 0, -1, 2**70, True, 1.5, "", "odd", [], [1], {}, {"type": "odd"}, [[]])


def spots(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value: its container and its key or index."""
    found: list[tuple[Any, Any]] = []
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found += [(value, key), *spots(value[key])]
    return found


def damage(lines: Lines, how: str, at: int, other: int) -> Lines:
    """One thing wrong with the lines."""
    index = at % len(lines)
    line, before, after = lines[index], lines[:index], lines[index + 1 :]
    if how == "cut":
        cut = other % (len(line) + 1)
        return [*before, line[:cut], line[cut:], *after]
    if how == "double":
        return [*before, line, line, *after]
    if how == "move":
        rest = [*before, *after]
        return [*rest[: other % (len(rest) + 1)], line, *rest[other % (len(rest) + 1) :]]
    if how == "remove":
        return [*before, *after]
    if how == "end here":
        return [*before, line]
    try:
        native = json.loads(line)
    except ValueError:
        return lines
    places = spots(native)
    if not places:
        return lines
    container, key = places[other % len(places)]
    if how == "lose":
        del container[key]
    else:
        container[key] = ODD[(at + other) % len(ODD)]
    return [*before, json.dumps(native).encode(), *after]


number = st.integers(0, 2**32)
kinds = st.sampled_from(["cut", "double", "move", "remove", "end here", "lose", "lose", "odd", "odd"])
damages = st.lists(st.tuples(kinds, number, number), min_size=1, max_size=6)
tasks = st.sampled_from([transcript for transcript in ALL if transcript.once])
sessions = st.sampled_from([transcript for transcript in ALL if not transcript.once])


def damaged(transcript: Transcript, wrong: list[tuple[str, int, int]]) -> Lines:
    found = [line for line in transcript.lines if action(line) is None]
    for how, at, other in wrong:
        found = damage(found, how, at, other) if found else found
    return found


def assert_events(events: list[OutputEvent]) -> None:
    for event in events:
        assert isinstance(event, Event)
        assert decode(event.encode()) == event


@settings(max_examples=400)
@given(tasks, damages, st.integers(-15, 200))
def test_a_task_ends_once_and_last(transcript: Transcript, wrong: list[tuple[str, int, int]], exit_code: int) -> None:
    codec = transcript.codec()
    events = [event for line in damaged(transcript, wrong) for event in codec.receive(line)]
    assert_events(events)
    assert "session_end" not in {event.kind for event in events}
    left = codec.exited(exit_code, ["said", "this"])
    assert [event.kind for event in left].count("session_end") == 1
    assert left[-1].kind == "session_end"
    assert_events(left)
    assert codec.exited(exit_code, []) == []


@settings(max_examples=400, deadline=None)
@given(sessions, damages, number, st.booleans())
def test_a_session_has_at_most_one_end_a_turn(
    transcript: Transcript, wrong: list[tuple[str, int, int]], interrupt_at: int, patient: bool
) -> None:
    codec = transcript.codec()
    prompts = ends = 0
    for index, line in enumerate(damaged(transcript, wrong)):
        if codec.phase == "ready":
            codec.prompt(Prompt("x"))
            prompts += 1
        if index == interrupt_at % 100 and codec.phase in ("running", "waiting"):
            codec.interrupt()
        events = codec.receive(line)
        if codec.settle_after() is not None and (patient or index % 3 == 0):
            events += codec.settle()
            assert events[-1].kind == "awaiting" and codec.settle_after() is None
            calls = [call.id for call in getattr(events[-1], "calls", ())]
            for call_id in calls:
                assert codec.phase == "waiting"
                codec.reply(ToolReply(call_id, "18"))
            assert codec.phase == "running"
        assert_events(events)
        found = [event.kind for event in events]
        ends += found.count("session_end")
        assert "session_end" not in found[:-1]
        assert (codec.phase in ("running", "waiting")) == (prompts > ends)
    left = codec.exited(1, [])
    assert [event.kind for event in left][-1:] == (["session_end"] if prompts > ends else [])
    for line in bytes(codec.outbox).splitlines():
        json.loads(line)


def test_unknown_lines_are_shown_as_they_are() -> None:
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
