"""Plays recorded output of the codex CLI to its codecs, with the actions between the lines (see README.md there)."""

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
    """The output of one process. `once` is true for a task; `own` and `app` are the tools of a session."""

    name: str
    lines: tuple[bytes, ...] = field(repr=False)
    own: tuple[tuple[str, bool], ...] = ()
    app: bool = False

    @property
    def once(self) -> bool:
        return self.name.startswith("exec_")

    @property
    def turns(self) -> int:
        """The number of prompts."""
        return sum("prompt" in (action(line) or {}) for line in self.lines)

    @property
    def exit_code(self) -> int:
        return int(any(b'"turn.failed"' in line for line in self.lines))

    def codec(self) -> Codec:
        """A codec with the settings of the recording."""
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
    """The action on the codec in this line; None for a line of the CLI."""
    if not line.startswith(b'{"portico"'):
        return None
    action_fields: dict[str, Any] = json.loads(line)["portico"]
    return action_fields


def act(codec: Codec, action_fields: dict[str, Any]) -> list[OutputEvent]:
    """Repeat an action on the codec; return its events."""
    if "prompt" in action_fields:
        codec.prompt(Prompt(action_fields["prompt"]))
    elif "settle" in action_fields:
        return codec.debounced_events()
    elif "interrupt" in action_fields:
        codec.interrupt()
    elif "permission" in action_fields:
        codec.reply(
            PermissionReply(action_fields["permission"], "allow" if action_fields["granted"] else "deny", action_fields["reason"])
        )
    else:
        codec.reply(ToolReply(action_fields["result"], action_fields["content"]))
    return []


def play(transcript: Transcript) -> list[list[OutputEvent]]:
    """The events of each turn. Events between two turns of a session count to the earlier one."""
    codec = transcript.codec()
    turns: list[list[OutputEvent]] = [[]]
    for line in transcript.lines:
        action_fields = action(line)
        if action_fields is not None and "prompt" in action_fields and turns[-1]:
            turns.append([])
        turns[-1] += codec.receive(line) if action_fields is None else act(codec, action_fields)
    if transcript.once:
        turns[-1] += codec.exited(transcript.exit_code, [])
    return turns


def golden_lines(transcript: Transcript) -> bytes:
    """The events of all turns, one per line."""
    return b"".join(event.encode() + b"\n" for turn in play(transcript) for event in turn)
