"""Dialogues with the claude and codex CLIs in an order that no recording has, as golden files: one step a line.

`out` is a line of the CLI, `prompt`, `reply`, `interrupt`, `set_mode`, `settle` (a silence of the CLI) and `exited` are calls of
the codec. What they lead to follows: `event`s, lines that the codec writes (`in`), its `phase` if that has changed, and its
`protocol_error` if it has one. The first line has what the dialogue shows, and the session.
`python -m tests.drivers.rewrite_goldens` writes the consequences again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drivers.claude.codec import ClaudeCodec
from drivers.claude.permissions import MODES
from drivers.claude.tools import Toolset
from drivers.codex.app_server import CodexAppCodec
from drivers.codex.handshake import SessionRequest
from drivers.contract.agent import PermissionReply, Prompt, ToolReply
from drivers.contract.agent_specs import SessionPermissions, SessionSpec
from drivers.contract.codec import Codec
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import OutputEvent
from tests.drivers.claude.cli import APP

HERE = Path(__file__).parents[1] / "transcripts" / "dialogues"
PATHS = sorted(HERE.glob("*/*.jsonl"))
PERMITTED = frozenset(mode.id for mode in MODES if not mode.unrestricted)
CONSEQUENCES = {"event", "in", "phase", "protocol_error"}

Json = dict[str, Any]


def read(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def text_of(records: list[Json]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def replay(cli: str, records: list[Json]) -> list[Json]:
    """The steps of a dialogue, each with what it leads to now."""
    head, *steps = records
    codec = {"claude": _claude, "codex": _codex}[cli](head["session"])
    found, phase, error = [head], codec.phase, None
    codec.outbox.clear()
    for step in steps:
        if step.keys() & CONSEQUENCES:
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
        if codec.protocol_error is not error:
            error = codec.protocol_error
            found.append({"protocol_error": str(error)})
    return found


def _claude(session: Json) -> Codec:
    ruled, mode = session.get("ruled", ()), session.get("mode")
    tools = Toolset(_grants(session), APP, mode=mode, ruled=lambda name: name in ruled)
    sources, folder = session.get("sources", ()), session.get("folder", "")
    return ClaudeCodec(tools=tools, mode=mode, modes=PERMITTED if mode else frozenset(), folder=folder, sources=sources)


def _codex(session: Json) -> Codec:
    permissions = SessionPermissions(frozenset(session.get("modes", ())))
    options, grants = session.get("options", {}), tuple(_grants(session))
    spec = SessionSpec("codex", Path("/work"), {}, options=options, tools=grants, permissions=permissions)
    return CodexAppCodec(SessionRequest.of(spec))


def _grants(session: Json) -> list[ToolGrant]:
    return [ToolGrant(name, trust) for name, trust in session["tools"].items()]


def _take(codec: Codec, kind: str, value: Any) -> tuple[Any, list[OutputEvent]]:
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


def _written(codec: Codec) -> Iterator[Json]:
    """Take the lines that the codec has written, without the random id of a prompt."""
    lines = [json.loads(line) for line in bytes(codec.outbox).splitlines()]
    codec.outbox.clear()
    for line in lines:
        line.pop("uuid", None)
        yield {"in": line}
