"""The claude codec on output that is cut, doubled, shuffled or has parts missing: it never raises, and a run still ends once."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from drivers.base import Prompt
from drivers.claude_codec import ClaudeCodec
from drivers.events import Event, OutputEvent, Stdout, decode
from tests.drivers.claude_transcripts import ALL

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
    if how == "cut short":
        return [*before, line[: other % (len(line) + 1)], *after]
    if how == "double":
        return [*before, line, line, *after]
    if how == "move":
        rest = [*before, *after]
        return [*rest[: other % (len(rest) + 1)], line, *rest[other % (len(rest) + 1) :]]
    if how == "remove":
        return [*before, *after]
    if how == "end here":
        return [*before, line]
    native = _parsed(line)
    places = spots(native)
    if not places:
        return lines
    container, key = places[other % len(places)]
    if how == "lose":
        del container[key]
    else:
        container[key] = ODD[(at + other) % len(ODD)]
    return [*before, json.dumps(native).encode(), *after]


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


number = st.integers(0, 2**32)
kinds = st.sampled_from(["cut", "cut short", "double", "move", "remove", "end here", "lose", "lose", "odd", "odd"])
damages = st.lists(st.tuples(kinds, number, number), min_size=1, max_size=6)
names = st.sampled_from([transcript.name for transcript in ALL])
LINES = {transcript.name: transcript.lines for transcript in ALL}


def damaged(lines: tuple[bytes, ...], wrong: list[tuple[str, int, int]]) -> Lines:
    found = list(lines)
    for how, at, other in wrong:
        found = damage(found, how, at, other) if found else found
    return found


def assert_events(events: list[OutputEvent]) -> None:
    for event in events:
        assert isinstance(event, Event)
        assert decode(event.encode()) == event


@settings(max_examples=400)
@given(names, damages, st.integers(-15, 200))
def test_a_task_ends_once_and_last(name: str, wrong: list[tuple[str, int, int]], exit_code: int) -> None:
    codec = ClaudeCodec(once=True)
    events = [event for line in damaged(LINES[name], wrong) for event in codec.receive(line)]
    assert_events(events)
    assert "session_end" not in {event.kind for event in events}
    left = codec.exited(exit_code, ["said", "this"])
    assert [event.kind for event in left].count("session_end") == 1
    assert left[-1].kind == "session_end"
    assert_events(left)
    assert codec.exited(exit_code, []) == []


@settings(max_examples=400)
@given(names, damages, number)
def test_a_session_has_at_most_one_end_a_turn(name: str, wrong: list[tuple[str, int, int]], interrupt_at: int) -> None:
    codec = ClaudeCodec()
    lines = damaged(LINES[name], wrong)
    prompts = 0
    ends = 0
    for index, line in enumerate(lines):
        if codec.phase == "ready":
            codec.prompt(Prompt("x"))
            prompts += 1
        if index == interrupt_at % 100:
            codec.interrupt()
        events = codec.receive(line)
        assert_events(events)
        kinds_of = [event.kind for event in events]
        ends += kinds_of.count("session_end")
        assert "session_end" not in kinds_of[:-1]
        assert ends <= prompts
        assert (codec.phase == "running") == (prompts > ends)
    left = codec.exited(1, [])
    assert [event.kind for event in left][-1:] == (["session_end"] if prompts > ends else [])
    for line in bytes(codec.outbox).splitlines():
        json.loads(line)


@given(st.binary() | st.text().map(str.encode) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_unknown_lines_are_shown_as_they_are(line: bytes) -> None:
    line = line.replace(b"\n", b" ")
    codec = ClaudeCodec(once=True)
    shown = codec.receive(line)
    assert shown == ([Stdout(line=line.decode("utf-8", "replace").rstrip("\r"))] if line.strip() else [])


def test_new_types_are_shown_and_known_ones_in_a_new_shape_too() -> None:
    for native in (
        {"type": "new_type", "text": "x"},
        {"type": "system", "subtype": "new_subtype"},
        {"type": "stream_event", "event": {"type": "new_event"}},
        {"type": "stream_event", "event": {"type": "content_block_delta", "delta": {"type": "new_delta"}}},
        {"type": "stream_event"},
        {"type": "assistant", "message": "text"},
        {"type": "user", "message": None},
        {"type": "system", "subtype": "init"},
        {"type": "control_response"},
        {"type": ["assistant"]},
    ):
        line = json.dumps(native)
        assert ClaudeCodec(once=True).receive(line.encode()) == [Stdout(line=line)]
