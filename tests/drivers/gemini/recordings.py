"""Plays recorded output of the gemini CLI to its codecs. Lines that begin with `#` are actions of the gateway, others are output.

`#task` or `#session JSON` is the first line; then `#prompt TEXT`, `#grant`, `#deny`, `#interrupt`, and of a task `#exit CODE`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from drivers.acp.codec import AcpCodec
from drivers.acp.handshake import SessionRequest
from drivers.acp.permissions import Grants
from drivers.contract.agent import PermissionReply, Prompt
from drivers.contract.codec import Codec
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import Awaiting, OutputEvent
from drivers.gemini.acp_profile import agent_profile
from drivers.gemini.one_shot_codec import GeminiTaskCodec

TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"
GOLDEN = TRANSCRIPTS / "golden" / "gemini"
PATHS = sorted((TRANSCRIPTS / "gemini").glob("*.jsonl"))


@dataclass(frozen=True)
class Transcript:
    """The output of one process, and the actions of the gateway."""

    name: str
    lines: tuple[bytes, ...] = field(repr=False)

    @property
    def once(self) -> bool:
        return self.lines[0] == b"#task"


def read(path: Path) -> Transcript:
    return Transcript(path.name.removesuffix(".jsonl"), tuple(path.read_bytes().splitlines()))


ALL = [read(path) for path in PATHS]


def codec_of(first: bytes, task: str | None = None) -> Codec:
    """The codec that the first line of a transcript names; with `task` a session codec runs that task only."""
    if first == b"#task":
        return GeminiTaskCodec()
    given = json.loads(first.removeprefix(b"#session"))
    grants = Grants(ToolGrant(*grant) for grant in given["tools"])
    request = SessionRequest(cwd="/home/user/work", resume=given["resume"], replays_after_load=True)
    return AcpCodec(request, grants, agent_profile(verbatim=True), Prompt(task) if task else None)


class Player:
    """Feeds a codec, as the runtime does."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.events: list[OutputEvent] = []

    def feed(self, lines: Iterable[bytes]) -> list[OutputEvent]:
        """All events of these lines. Actions that the codec's phase does not permit are skipped."""
        for line in lines:
            if line.startswith(b"#"):
                self._act(line)
            else:
                self.events += self.codec.receive(line)
            self.events += self.codec.pending
            self.codec.pending.clear()
            self.codec.outbox.clear()
        return self.events

    def _act(self, line: bytes) -> None:
        action, _, text = line.decode().partition(" ")
        if action == "#prompt" and self.codec.phase == "ready":
            self.codec.prompt(Prompt(text))
        elif action in ("#grant", "#deny") and self.codec.phase == "waiting":
            awaiting = next(event for event in reversed(self.events) if isinstance(event, Awaiting))
            self.codec.reply(PermissionReply(awaiting.calls[0].id, "allow" if action == "#grant" else "deny"))
        elif action == "#interrupt" and self.codec.phase in ("running", "waiting"):
            self.codec.interrupt()
        elif action == "#exit":
            self.events += self.codec.exited(int(text), [])


def play(transcript: Transcript) -> list[OutputEvent]:
    """All events of a transcript."""
    return Player(codec_of(transcript.lines[0])).feed(transcript.lines[1:])


def golden_lines(transcript: Transcript) -> bytes:
    """The events, one a line."""
    return b"".join(event.encode() + b"\n" for event in play(transcript))
