"""The gemini and ACP codecs on output that is cut, doubled, shuffled or has parts missing: nothing raises, a task ends once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from drivers.events import SessionEnd, decode
from tests.drivers.gemini_transcripts import ALL, Player, codec_of
from tests.drivers.test_claude_damage import damaged, damages

TASKS = {transcript.name: transcript for transcript in ALL if transcript.once}
TALKS = {transcript.name: transcript for transcript in ALL if not transcript.once}


def played(first: bytes, lines: list[bytes], task: str | None = None) -> list[SessionEnd]:
    """The ends among the events, which are all ones that can be stored; in the task form with the process' own end."""
    player = Player(codec_of(first, task))
    events = player.feed(lines)
    if task is not None or first == b"#task":
        events = [*events, *player.codec.exited(0, []), *player.codec.pending]
        assert isinstance(events[-1], SessionEnd)
    for event in events:
        assert decode(event.encode()) == event
    return [event for event in events if isinstance(event, SessionEnd)]


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(TASKS)), wrong=damages)
def test_a_damaged_task_ends_once_and_last(name: str, wrong: list[tuple[str, int, int]]) -> None:
    lines = tuple(line for line in TASKS[name].lines if not line.startswith(b"#"))
    assert len(played(b"#task", damaged(lines, wrong))) == 1


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(TALKS)), wrong=damages)
def test_a_damaged_session_in_task_form_ends_once_and_last(name: str, wrong: list[tuple[str, int, int]]) -> None:
    first, *rest = TALKS[name].lines
    lines = damaged(tuple(line for line in rest if not line.startswith(b"#prompt")), wrong)
    player = Player(codec_of(first, "x"))
    events = player.feed(lines)
    opened = player.codec.phase != "starting"
    events = [*events, *player.codec.exited(0, []), *player.codec.pending]
    ends = [n for n, event in enumerate(events) if isinstance(event, SessionEnd)]
    assert ends == ([len(events) - 1] if opened else [])


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(TALKS)), wrong=damages)
def test_a_damaged_session_never_raises(name: str, wrong: list[tuple[str, int, int]]) -> None:
    first, *rest = TALKS[name].lines
    ends = played(first, damaged(tuple(rest), wrong))
    assert len(ends) <= sum(line.startswith(b"#prompt") for line in damaged(tuple(rest), wrong)) + 1
