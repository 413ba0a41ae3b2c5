"""Plays recorded output of the codex CLI to its codecs, with what was done between the lines (see the README there)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drivers.codex.app_server import CodexAppCodec
from drivers.codex.exec import CodexExecCodec
from drivers.codex.handshake import SessionRequest
from drivers.contract.agent import PermissionReply, Prompt, ToolReply
from drivers.contract.agent_specs import SessionSpec
from drivers.contract.codec import Codec
from drivers.contract.driver_info import ToolGrant, ToolSpec
from drivers.contract.events import OutputEvent

TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"
GOLDEN = TRANSCRIPTS / "golden" / "codex"
PATHS = sorted((TRANSCRIPTS / "codex").glob("*.jsonl"))
WEATHER = ToolSpec("get_weather", "The weather of a place.", {"type": "object", "properties": {"location": {"type": "string"}}})


@dataclass(frozen=True)
class Transcript:
    """What one process printed. `once` is the form of a task; of a session, `own` and `app` are its tools."""

    name: str
    lines: tuple[bytes, ...] = field(repr=False)
    own: tuple[tuple[str, bool], ...] = ()
    app: bool = False

    @property
    def once(self) -> bool:
        return self.name.startswith("exec_")

    @property
    def turns(self) -> int:
        """How often it was prompted."""
        return sum("prompt" in (action(line) or {}) for line in self.lines)

    @property
    def exit_code(self) -> int:
        return int(any(b'"turn.failed"' in line for line in self.lines))

    def codec(self) -> Codec:
        """A codec as it was when this was recorded."""
        if self.once:
            return CodexExecCodec()
        tools = tuple(ToolGrant(name, trust) for name, trust in self.own)
        spec = SessionSpec("codex", Path("/home/user/work"), {}, tools=tools, app_tools=(WEATHER,) if self.app else ())
        return CodexAppCodec(SessionRequest.of(spec))


def read(path: Path) -> Transcript:
    name, lines = path.name.removesuffix(".jsonl"), path.read_bytes().splitlines()
    if name.startswith("exec_"):
        return Transcript(name, tuple(lines))
    head = json.loads(lines[0])["portico"]
    return Transcript(name, tuple(lines[1:]), tuple(head["own"].items()), head["app"])


ALL = [read(path) for path in PATHS]


def action(line: bytes) -> dict[str, Any] | None:
    """What was done to the codec here; None for a line of the CLI's."""
    if not line.startswith(b'{"portico"'):
        return None
    done: dict[str, Any] = json.loads(line)["portico"]
    return done


def act(codec: Codec, done: dict[str, Any]) -> list[OutputEvent]:
    """Do it again."""
    if "prompt" in done:
        codec.prompt(Prompt(done["prompt"]))
    elif "settle" in done:
        return codec.debounced_events()
    elif "interrupt" in done:
        codec.interrupt()
    elif "permission" in done:
        codec.reply(PermissionReply(done["permission"], done["granted"], done["reason"]))
    else:
        codec.reply(ToolReply(done["result"], done["content"]))
    return []


def play(transcript: Transcript) -> list[list[OutputEvent]]:
    """The events of each turn; of a session, what came outside of its turns is with the turn before."""
    codec = transcript.codec()
    turns: list[list[OutputEvent]] = [[]]
    for line in transcript.lines:
        done = action(line)
        if done is not None and "prompt" in done and turns[-1]:
            turns.append([])
        turns[-1] += codec.receive(line) if done is None else act(codec, done)
    if transcript.once:
        turns[-1] += codec.exited(transcript.exit_code, [])
    return turns


def golden_lines(transcript: Transcript) -> bytes:
    """The events of all its turns, one a line."""
    return b"".join(event.encode() + b"\n" for turn in play(transcript) for event in turn)
