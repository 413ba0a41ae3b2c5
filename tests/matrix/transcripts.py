"""Records the transcripts of a release into a throw-away folder, and compares their events with the golden ones."""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.drivers.claude import recordings as claude
from tests.drivers.codex import recordings as codex
from tests.drivers.gemini import recordings as gemini
from tests.matrix.results import ROOT
from tests.transcripts.record_claude_tools import HERE as CLAUDE_WIRES

RECORD_SECONDS = 900.0
SHOWN_LINES = 40
"""Lines of the difference of one transcript that are printed."""
INTERRUPTED_CHARACTERS = 4
"""Of a text that an interrupt cuts off, the length that is compared."""
VOLATILE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|agentId: \w+|duration_ms: \d+|\bmsg_\d+|127\.0\.0\.1:\d+")
"""What differs in a text from one recording to the next: UUIDs, ids of messages, ports, the id and time of claude's sub-agent."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Recordings:
    """How the transcripts of a CLI are recorded and read. `golden(name)` and `events(path)` return JSON lines."""

    recorder: str
    golden: Callable[[str], str]
    events: Callable[[Path], str]


def _wire_events(path: Path) -> str:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return "".join(json.dumps(record["event"]) + "\n" for record in records if "event" in record)


RECORDINGS = {
    "claude": (
        Recordings(
            "tests.transcripts.record_claude",
            lambda name: (claude.GOLDEN / f"{name}.events.jsonl").read_text(),
            lambda path: claude.golden_lines(claude.read(path)).decode(),
        ),
        Recordings(
            "tests.transcripts.record_claude_tools", lambda name: _wire_events(CLAUDE_WIRES / f"{name}.jsonl"), _wire_events
        ),
    ),
    "codex": (
        Recordings(
            "tests.real.codex.record",
            lambda name: (codex.GOLDEN / f"{name}.events.jsonl").read_text(),
            lambda path: codex.golden_lines(codex.read(path)).decode(),
        ),
    ),
    "gemini": (
        Recordings(
            "tests.real.record_gemini",
            lambda name: (gemini.GOLDEN / f"{name}.events.jsonl").read_text(),
            lambda path: gemini.golden_lines(gemini.read(path)).decode(),
        ),
    ),
}


async def differences(cli: str, installation: Path) -> str:
    """The differences of the events of the CLI in this folder from the golden ones; empty if there are none."""
    found = [await _differences(recordings, installation) for recordings in RECORDINGS[cli]]
    return "\n".join(text for text in found if text)


async def _differences(recordings: Recordings, installation: Path) -> str:
    with tempfile.TemporaryDirectory(prefix="portico-matrix-", dir="/var/tmp", ignore_cleanup_errors=True) as name:
        base = Path(name)
        if problem := await _record(recordings.recorder, installation, base):
            return f"The transcripts were not recorded: {problem}"
        found = [
            difference(path.stem, recordings.golden(path.stem), recordings.events(path))
            for path in sorted((base / "recorded").glob("*.jsonl"))
        ]
    return "\n".join(text for text in found if text)


async def _record(recorder: str, installation: Path, base: Path) -> str:
    """Run a recorder, with its output in `base`/recorded; return why it failed."""
    home = base / "home"
    home.mkdir()
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(home), "PORTICO_TEST_CLIS": str(installation)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", recorder, "--to", str(base / "recorded")),
        cwd=ROOT,
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), RECORD_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"{recorder} was not ready after {RECORD_SECONDS:g} s"
    last = output.decode(errors="replace").strip().splitlines()[-1:]
    return f"{recorder} exited with {process.returncode}: {' '.join(last)}" if process.returncode else ""


def difference(name: str, golden: str, recorded: str) -> str:
    """The difference of the events of a transcript, without what differs from one recording to the next."""
    interrupted = name.startswith("interrupt")
    old, new = (comparable(map(json.loads, text.splitlines()), interrupted) for text in (golden, recorded))
    lines = list(difflib.unified_diff(old, new, f"{name} (golden)", f"{name} (recorded)", lineterm="", n=1))
    left = len(lines) - SHOWN_LINES
    return "\n".join([*lines[:SHOWN_LINES], *([f"... and {left} more lines"] if left > 0 else [])])


def comparable(events: Iterable[Json], interrupted: bool = False) -> list[str]:
    """The events as lines: pieces of a text joined, ids replaced by what they name, and the events of each call together.

    How a text or the input of a call is cut into pieces, how far a text came before an interrupt, and the order of calls that run
    at the same time depend on the machine. So does whether output is streamed before its result: `tool_output` is left out.
    """
    joined = _joined(event for event in events if event["kind"] != "tool_output")
    names = _call_names(joined)
    conversation, calls = list[str](), list[str]()
    for event in joined:
        event = _neutral(event, names)
        if interrupted and event["kind"] in ("agent_token", "thinking"):
            event["text"] = event["text"][:INTERRUPTED_CHARACTERS]
        if event["kind"] == "awaiting":
            event["calls"] = sorted(event["calls"], key=lambda call: str(call["id"]))
        line = json.dumps(event, ensure_ascii=False)
        (calls if event["kind"] in ("tool_call", "tool_input", "tool_result") else conversation).append(line)
    return [*conversation, *sorted(calls)]


def _joined(events: Iterable[Json]) -> list[Json]:
    """The events, with successive pieces of one text as one, and the pieces of the input of one call as one without it."""
    joined: list[Json] = []
    streamed = set[str]()
    for event in events:
        if event["kind"] == "tool_input":
            event = {**event, "input": {}}
            if event["id"] in streamed:
                continue
            streamed.add(event["id"])
        last = joined[-1] if joined else {}
        same = {**event, "text": ""} == {**last, "text": ""}
        if event["kind"] in ("agent_token", "thinking") and same:
            last["text"] += event["text"]
        else:
            joined.append(dict(event))
    return joined


def _call_names(events: Sequence[Json]) -> dict[str, str]:
    """A name for the id of each call: its tool, its input, and its number among those that are the same."""
    names: dict[str, str] = {}
    for event in events:
        if event["kind"] == "tool_call" and event["id"] not in names:
            name = f"{event.get('name')} {json.dumps(event.get('input'), sort_keys=True)}"
            names[event["id"]] = f"{name} {sum(known.startswith(name) for known in names.values()) + 1}"
    return names


def _neutral(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: "" if key in ("native_id", "duration_ms") else _neutral(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_neutral(each, names) for each in value]
    if isinstance(value, str):
        return names.get(value) or VOLATILE.sub("…", value)
    return value
