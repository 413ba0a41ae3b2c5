"""Every codec on output that is cut, doubled, shuffled or has parts missing: nothing raises, and a run still ends once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from drivers.claude.codec import ClaudeCodec
from drivers.codecs.output_event_lines import EventLineCodec
from drivers.contract.codec import Codec
from drivers.testing.codec_player import Player
from drivers.testing.damaged_lines import KINDS, Damage, damaged
from tests.drivers.claude import recordings as claude_transcripts
from tests.drivers.codex import recordings as codex_transcripts
from tests.drivers.gemini import recordings as gemini_transcripts

Lines = tuple[bytes, ...]


@dataclass(frozen=True)
class Recording:
    """The output of one process and its codec, for a task or a session."""

    name: str
    lines: Lines = field(repr=False)
    codec: Callable[[], Codec] = field(repr=False)
    task: bool


def claude() -> list[Recording]:
    """Both modes of the codec with the lines of both."""
    found = []
    for transcript in claude_transcripts.ALL:
        found.append(Recording(f"claude {transcript.name}, as a task", transcript.lines, lambda: ClaudeCodec(once=True), True))
        found.append(Recording(f"claude {transcript.name}", transcript.lines, ClaudeCodec, False))
    return found


def codex() -> list[Recording]:
    return [
        Recording(f"codex {t.name}", tuple(line for line in t.lines if codex_transcripts.action(line) is None), t.codec, t.once)
        for t in codex_transcripts.ALL
    ]


def gemini() -> list[Recording]:
    """Sessions and tasks; the codec is that of any ACP agent."""
    found = []
    for transcript in gemini_transcripts.ALL:
        first, *rest = transcript.lines
        lines = tuple(line for line in rest if not line.startswith(b"#"))

        def codec(task: str | None, first: bytes = first) -> Codec:
            return gemini_transcripts.codec_of(first, task)

        found.append(Recording(f"gemini {transcript.name}", lines, lambda codec=codec: codec(None), transcript.once))  # type: ignore[misc]
        if not transcript.once:
            named = f"gemini {transcript.name}, as a task"
            found.append(Recording(named, lines, lambda codec=codec: codec("x"), True))  # type: ignore[misc]
    return found


def event_lines() -> list[Recording]:
    """The golden events of claude are lines of this codec."""
    lines = [claude_transcripts.golden_lines(transcript).splitlines() for transcript in claude_transcripts.ALL]
    return [Recording(f"events {n}", tuple(found), EventLineCodec, False) for n, found in enumerate(lines) if found]


number = st.integers(0, 2**32)
damages = st.lists(st.tuples(st.sampled_from([*KINDS, "lose", "odd"]), number, number), min_size=1, max_size=6)
recordings = st.sampled_from([*claude(), *codex(), *gemini(), *event_lines()])


@settings(max_examples=15 * settings.default.max_examples)
@given(recordings, damages, st.integers(0, 150), st.integers(-15, 200))
def test_a_run_ends_once_and_nothing_raises(recording: Recording, wrong: list[Damage], stop: int, exit_code: int) -> None:
    player = Player(recording.codec(), task=recording.task)
    player.play(damaged(recording.lines, wrong), lambda index: index == stop)
    player.exit(exit_code)
    for line in bytes(player.codec.outbox).splitlines():
        json.loads(line)
