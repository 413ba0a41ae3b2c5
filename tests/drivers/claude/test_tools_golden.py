"""Recorded conversations about tools, played again: the codec writes the same lines and gives the same events.

The expected events are in this file, the lines in tests/transcripts/claude_tools.
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


def short(events: list[Json]) -> list[str]:
    """The events in short form. Calls are a, b, c, in the order of their first appearance; `?` waits for a permission, `=` for a
    result; an answer to a call in parentheses is optional."""
    letters: dict[str, str] = {}

    def letter(call_id: str) -> str:
        return letters.setdefault(call_id, "abcdefgh"[len(letters)])

    shown: list[str] = []
    for event in events:
        kind = event["kind"]
        if kind == "tool_call":
            inner = "inner " if event.get("parent_id") else ""
            shown.append(f"{inner}{event['status']} {letter(event['id'])} {event['name']}")
        elif kind == "tool_result":
            shown.append(f"{'error' if event['is_error'] else 'result'} {letter(event['tool_call_id'])} {event['output']!s:.23}")
        elif kind == "awaiting":
            marks = [letter(call["id"]) + {"result": "=", "permission": "?"}[call["wants"]] for call in event["calls"]]
            optional = [f"({mark})" if call.get("optional") else mark for mark, call in zip(marks, event["calls"], strict=True)]
            shown.append(f"awaiting {' '.join(optional)}")
        elif kind in ("agent_token", "message_end"):
            shown.append(event.get("text", "."))
        elif kind == "session_end":
            shown.append(event["stop_reason"])
    return shown


EVENTS = {
    "app": [
        "Asking. ",
        "started a get_weather",
        "started b get time",
        ".",
        "awaiting a= b=",
        "completed a get_weather",
        "completed b get time",
        "Done.",
        ".",
        "end_turn",
    ],
    "mixed": [
        "started a get_weather",
        "started b get time",
        "started c Read",
        "started d Bash",
        ".",
        "result c 1\ta note",
        "completed c Read",
        "awaiting a= b= d?",
        "completed a get_weather",
        "completed b get time",
        "result d made",
        "completed d Bash",
        "Done.",
        ".",
        "end_turn",
    ],
    "serial_denied": [
        "started a Bash",
        "started b Bash",
        "started c get_weather",
        ".",
        "awaiting a? b? c=",
        "error a Tool call denied: no",
        "failed a Bash",
        "result b 2",
        "completed b Bash",
        "completed c get_weather",
        "Done.",
        ".",
        "end_turn",
    ],
    "behind": [
        "started a Bash",
        "started b Write",
        ".",
        "awaiting a? (b?)",
        "result a 1",
        "completed a Bash",
        "result b File created successful",
        "completed b Write",
        "Done.",
        ".",
        "end_turn",
    ],
    "behind_denied": [
        "started a Bash",
        "started b Write",
        ".",
        "awaiting a? (b?)",
        "result a 1",
        "completed a Bash",
        "error b Tool call denied: no",
        "failed b Write",
        "Done.",
        ".",
        "end_turn",
    ],
    "unlisted": [
        "started a WebFetch",
        "started b Bash",
        ".",
        "error a <tool_use_error>Error: ",
        "failed a WebFetch",
        "awaiting b?",
        "result b 1",
        "completed b Bash",
        "Done.",
        ".",
        "end_turn",
    ],
    "badinput": [
        "started a Bash",
        "started b Bash",
        ".",
        "error a <tool_use_error>InputVa",
        "failed a Bash",
        "awaiting b?",
        "error b Tool call denied: no",
        "failed b Bash",
        "Done.",
        ".",
        "end_turn",
    ],
    "subagent": [
        "started a Agent",
        ".",
        "started b Bash",
        "started c get_weather",
        "awaiting b? c=",
        "error b Tool call denied: no",
        "failed b Bash",
        "completed c get_weather",
        "result a   <tools-used-before-su",
        "completed a Agent",
        "Done.",
        ".",
        "end_turn",
    ],
    "interrupt": [
        "started a get_weather",
        "started b get time",
        "started c Read",
        "started d Bash",
        ".",
        "result c 1\ta note",
        "completed c Read",
        "awaiting a= b= d?",
        "failed a get_weather",
        "failed b get time",
        "failed d Bash",
        "cancelled",
    ],
}


@pytest.mark.parametrize("name", WIRES)
def test_the_reported_events(name: str) -> None:
    assert short(play(wire(name))[1]) == EVENTS[name]


@pytest.mark.parametrize("name", WIRES)
def test_a_replay_gives_the_same_lines_and_events(name: str) -> None:
    records = wire(name)
    written, events = play(records)
    assert written == [found["in"] for found in records if "in" in found]
    assert events == [found["event"] for found in records if "event" in found]
