"""Dialogues with the claude CLI in an order that no recording has, as golden files: one step a line.

`out` is a line of the CLI, `prompt`, `reply`, `interrupt`, `set_mode`, `settle` (a silence of the CLI) and `exited` are calls of
the codec. What they lead to follows: `event`s, lines that the codec writes (`in`), and its `phase` if that has changed. The first
line has what the dialogue shows, and the session. `python -m tests.drivers.rewrite_goldens` writes the consequences again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drivers.claude.codec import ClaudeCodec
from drivers.claude.permissions import MODES
from drivers.claude.tools import Toolset
from drivers.contract.agent import PermissionReply, Prompt, ToolReply
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import OutputEvent
from tests.drivers.claude.cli import APP

HERE = Path(__file__).parents[2] / "transcripts" / "claude_dialogues"
PERMITTED = frozenset(mode.id for mode in MODES if not mode.unrestricted)

Json = dict[str, Any]


def read(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def text_of(records: list[Json]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def replay(records: list[Json]) -> list[Json]:
    """The steps of a dialogue, each with what it leads to now."""
    head, *steps = records
    codec = _codec(head["session"])
    found, phase = [head], codec.phase
    codec.outbox.clear()
    for step in steps:
        if step.keys() & {"event", "in", "phase"}:
            continue
        [(kind, value)] = step.items()
        answer, events = _take(codec, kind, value)
        found.append({kind: answer})
        found += [{"event": json.loads(event.encode())} for event in (*events, *codec.pending)]
        codec.pending.clear()
        found += _written(codec)
        if codec.phase != phase:
            phase = codec.phase
            found.append({"phase": phase})
    return found


def _codec(session: Json) -> ClaudeCodec:
    ruled, mode = session.get("ruled", ()), session.get("mode")
    grants = [ToolGrant(name, trust) for name, trust in session["tools"].items()]
    tools = Toolset(grants, APP, mode=mode, ruled=lambda name: name in ruled)
    sources, folder = session.get("sources", ()), session.get("folder", "")
    return ClaudeCodec(tools=tools, mode=mode, modes=PERMITTED if mode else frozenset(), folder=folder, sources=sources)


def _take(codec: ClaudeCodec, kind: str, value: Any) -> tuple[Any, list[OutputEvent]]:
    """Do a step. Return its value, with the codec's answer, and the events."""
    if kind == "out":
        return value, codec.receive(json.dumps(value).encode())
    if kind == "prompt":
        codec.prompt(Prompt(value))
    elif kind == "reply":
        codec.reply(ToolReply(**value) if "content" in value else PermissionReply(**value))
    elif kind == "interrupt":
        return codec.interrupt(), []
    elif kind == "set_mode":
        return {"mode": value["mode"], "is_set": codec.set_mode(value["mode"])}, []
    elif kind == "settle":
        return codec.debounce_seconds(), codec.debounced_events()
    else:
        return value, list(codec.exited(value, []))
    return value, []


def _written(codec: ClaudeCodec) -> Iterator[Json]:
    """Take the lines that the codec has written, without the random id of a prompt."""
    lines = [json.loads(line) for line in bytes(codec.outbox).splitlines()]
    codec.outbox.clear()
    for line in lines:
        line.pop("uuid", None)
        yield {"in": line}
