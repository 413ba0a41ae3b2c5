"""Recorded conversations about tools, played again: the codec writes the same lines and gives the same events.

The lines and the events are in tests/transcripts/claude_tools.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drivers.claude.codec import ClaudeCodec
from drivers.claude.tools import Toolset
from drivers.contract.agent import PermissionReply, Prompt, ToolReply
from tests.transcripts.record_claude_tools import APP, GRANTS, WIRES

HERE = Path(__file__).parents[2] / "transcripts" / "claude_tools"

Json = dict[str, Any]


def wire(name: str) -> list[Json]:
    return [json.loads(line) for line in (HERE / f"{name}.wire.jsonl").read_text().splitlines()]


def play(records: list[Json]) -> tuple[list[Json], list[Json]]:
    """The lines and events of a codec that receives the recorded prompts, replies and output again."""
    written, replayed = replay(records)
    return written, [found["event"] for found in replayed if "event" in found]


def replay(records: list[Json]) -> tuple[list[Json], list[Json]]:
    """The lines of the codec, without the random id of a prompt, and the records with its events instead of the recorded ones."""
    codec = ClaudeCodec(tools=Toolset(GRANTS, APP))
    written: list[Json] = []
    replayed: list[Json] = []
    for found in records:
        if "event" not in found:
            replayed.append(found)
        if "prompt" in found:
            codec.prompt(Prompt(found["prompt"]))
        elif "reply" in found:
            call_id, answer = found["reply"]["id"], found["reply"]["answer"]
            codec.reply(
                ToolReply(call_id, answer)
                if isinstance(answer, str)
                else PermissionReply(call_id, "allow" if answer else "deny", "no")
            )
        elif "interrupt" in found:
            codec.interrupt()
        elif "settle" in found:
            replayed += [{"event": json.loads(event.encode())} for event in codec.debounced_events()]
        elif "out" in found:
            replayed += [{"event": json.loads(event.encode())} for event in codec.receive(json.dumps(found["out"]).encode())]
        replayed += [{"event": json.loads(event.encode())} for event in codec.pending]
        codec.pending.clear()
        written += [json.loads(line) for line in bytes(codec.outbox).splitlines()]
        codec.outbox.clear()
    for line in written:
        line.pop("uuid", None)
    return written, replayed


@pytest.mark.parametrize("name", WIRES)
def test_a_replay_gives_the_same_lines_and_events(name: str) -> None:
    records = wire(name)
    written, events = play(records)
    assert written == [found["in"] for found in records if "in" in found]
    assert events == [found["event"] for found in records if "event" in found]
