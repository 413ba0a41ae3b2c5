"""Plays recorded output of the claude CLI to the codec; the README of the transcripts documents the actions between the lines."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivers.claude.codec import ClaudeCodec
from drivers.contract.agent import Prompt
from drivers.contract.events import OutputEvent

TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"
GOLDEN = TRANSCRIPTS / "golden" / "claude"
PATHS = sorted((TRANSCRIPTS / "claude").glob("*.jsonl"))
RETRIES_OF_ONE_SHOTS = {"e401_retry", "e500_retry"}


@dataclass(frozen=True)
class Transcript:
    """The output of one process. `once` is true in one-shot mode."""

    name: str
    lines: tuple[bytes, ...] = field(repr=False)
    once: bool

    @property
    def natives(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    @property
    def results(self) -> list[dict[str, Any]]:
        """The `result` lines that end a prompted turn."""
        results = [native for native in self.natives if native["type"] == "result"]
        return [native for native in results if native.get("origin", {}).get("kind") != "task-notification"]

    @property
    def turns(self) -> int:
        """The number of prompts."""
        return sum(native.get("num_turns", 0) > 0 or "local_command" in native for native in self.results)

    @property
    def exit_code(self) -> int:
        return int(self.results[-1]["is_error"])


def read(path: Path) -> Transcript:
    name = path.name.removesuffix(".jsonl")
    return Transcript(name, tuple(path.read_bytes().splitlines()), name.startswith("oneshot_") or name in RETRIES_OF_ONE_SHOTS)


ALL = [read(path) for path in PATHS]


def play(transcript: Transcript) -> list[list[OutputEvent]]:
    """The events of each turn. Events between two turns of a session count to the earlier one."""
    codec = ClaudeCodec(once=transcript.once)
    turns: list[list[OutputEvent]] = [[]]
    left = 0 if transcript.once else transcript.turns
    for line in transcript.lines:
        if codec.phase == "ready" and left:
            codec.prompt(Prompt("x"))
            left -= 1
            turns += [[]] if turns[-1] else []
        if _answers_an_interrupt(line):
            codec.interrupt()
        turns[-1] += codec.receive(line)
    if transcript.once:
        turns[-1] += codec.exited(transcript.exit_code, [])
    return turns


def _answers_an_interrupt(line: bytes) -> bool:
    native = json.loads(line)
    return native["type"] == "control_response" and str(native["response"]["request_id"]).startswith("int")


def golden_lines(transcript: Transcript) -> bytes:
    """The events of all turns, one per line."""
    return b"".join(event.encode() + b"\n" for turn in play(transcript) for event in turn)
