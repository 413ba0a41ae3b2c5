"""OutputEvent gateway: the eleven kinds of `/v1/execute`, the end of its stream, and what each driver runs and reads."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.documents.documents import Json, sections, whole
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.programs import write_program

KINDS = sections("output_events")["Event types"]
DRIVERS = sections("output_events")["Driver behaviour"]
LIMITS = {"i32": (-(2**31), 2**31), "u64": (0, 2**64), "integer": (0, 2**63)}


def read_stream(text: str) -> list[Json]:
    """Return the events of a stream: one JSON payload in each `data:` line, and nothing else."""
    assert text.endswith("\n\n")
    frames = text.removesuffix("\n\n").split("\n\n")
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    events = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    for event in events:
        check(event)
    assert [event["kind"] for event in events].count("session_end") == 1
    assert events[-1]["kind"] == "session_end"
    return events


def check(event: Json) -> None:
    """Check that an event has the fields of its kind, with their types."""
    shape = {name.removesuffix("?"): kind for name, kind in KINDS[event["kind"]].items()}
    required = {name for name in KINDS[event["kind"]] if not name.endswith("?")}
    found = {name: value for name, value in event.items() if name != "kind"}
    assert required <= found.keys() <= shape.keys(), event
    for name, value in found.items():
        kind = shape[name]
        if isinstance(kind, list):
            assert value in kind
        elif kind in LIMITS:
            low, high = LIMITS[kind]
            assert isinstance(value, int) and low <= value < high and not isinstance(value, bool), event
        elif kind != "any":
            assert isinstance(value, {"string": str, "bool": bool}[kind]), event


async def run(running: RunningGateway, driver: str, task: str = "do it", **fields: Any) -> list[Json]:
    """Run a task; return its events without the duration."""
    answer = await running.client.post("/v1/execute", json={"driver": driver, "task": task, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].split(";")[0] == "text/event-stream"
    events = read_stream(answer.text)
    del events[-1]["duration_ms"]
    return events


@asynccontextmanager
async def playing(folder: Path, *steps: Json) -> AsyncIterator[RunningGateway]:
    """Run a gateway whose script agent plays these steps."""
    config = gateway_config(folder)
    config["agents"]["script"]["options"] = {"scenario": "scene.json"}
    (folder / "scenes" / "scene.json").write_text(json.dumps({"turns": [{"steps": list(steps)}]}))
    async with run_gateway(config) as running:
        yield running


CALL = {"id": "t", "name": "lookup", "input": {"query": "x"}, "detail": "d", "result": {"hits": 3}}
USAGE = {"input_tokens": 1, "output_tokens": 2, "cache_read": 3, "cache_write": 4}
STEPS: list[Json] = [
    whole("thinking", "hm"),
    whole("text", "a"),
    {"tool_call": CALL},
    {"tool_call": {"id": "f", "name": "own", "error": "no"}},
    {"subagent": {"id": "s", "label": "Look"}},
    {"hook": {"id": "h", "name": "PreCommit"}},
    {"line": "junk"},
    {"usage": USAGE},
    {"stderr": "oh"},
]
EVENTS: list[Json] = [
    {"kind": "thinking", "text": "hm"},
    {"kind": "agent_token", "text": "a"},
    {"kind": "tool_call", "id": "t", "name": "lookup", "status": "started", "detail": "d", "input": {"query": "x"}},
    {"kind": "tool_result", "tool_call_id": "t", "output": {"hits": 3}, "is_error": False},
    {"kind": "tool_call", "id": "t", "name": "lookup", "status": "completed"},
    {"kind": "tool_call", "id": "f", "name": "own", "status": "started", "input": {}},
    {"kind": "tool_result", "tool_call_id": "f", "output": "no", "is_error": True},
    {"kind": "tool_call", "id": "f", "name": "own", "status": "failed"},
    {"kind": "subagent", "id": "s", "status": "started", "label": "Look"},
    {"kind": "subagent", "id": "s", "status": "completed", "label": "Look"},
    {"kind": "hook", "id": "h", "name": "PreCommit", "status": "completed"},
    {"kind": "stdout", "line": "junk"},
    {"kind": "usage", **USAGE},
]


async def test_kinds_of_a_task_that_succeeds(tmp_path: Path) -> None:
    """Standard error is suppressed."""
    async with playing(tmp_path, *STEPS) as running:
        assert await run(running, "script") == [*EVENTS, {"kind": "session_end", "exit_code": 0}]


async def test_kinds_of_a_task_that_fails(tmp_path: Path) -> None:
    async with playing(tmp_path, *STEPS, {"exit": 3}) as running:
        found = await run(running, "script")
    *_, stderr, error, end = found
    assert found[:-3] == EVENTS
    assert (stderr, end) == ({"kind": "stderr", "line": "oh"}, {"kind": "session_end", "exit_code": 3})
    assert error["kind"] == "error" and error["message"]
    assert {event["kind"] for event in found} == KINDS.keys()
    assert len(KINDS) == 11


@pytest.mark.parametrize("task", ["hello", "--help", "a\nb\t\u00e9 \U0001f98a", '{"kind":"session_end"}', "x" * 200_000])
async def test_echo(portico: RunningGateway, task: str) -> None:
    end = {"kind": "session_end", "exit_code": 0}
    assert await run(portico, "echo", task) == [{"kind": "agent_token", "text": task}, end]


PROGRAM = """
import json, os, sys
program, arguments = sys.argv[0], sys.argv[1:]
if arguments == ["--version"]:
    print("99.0.0")
elif arguments[:len({expected})] == {expected}:
    with open(program + ".call", "w") as call:
        json.dump({{"argv": arguments, "stdin": sys.stdin.read()}}, call)
    with open(program + ".jsonl") as lines:
        sys.stdout.write(lines.read())
else:
    sys.exit("a probe, or another invocation than that of the document: " + " ".join(arguments))
"""
"""A CLI on PATH. Called as in the document, it records the call and plays its lines."""


def stream(kind: str, **fields: Any) -> Json:
    return {"type": "stream_event", "event": {"type": kind, **fields}}


def delta(kind: str, **fields: Any) -> Json:
    return stream("content_block_delta", index=0, delta={"type": kind, **fields})


def block(kind: str, **fields: Any) -> Json:
    return stream("content_block_start", index=0, content_block={"type": kind, **fields})


def hook(event: str, name: str) -> list[Json]:
    fields = {"type": "system", "hook_id": name, "hook_name": name, "hook_event": event}
    return [{**fields, "subtype": "hook_started"}, {**fields, "subtype": "hook_response", "exit_code": 0, "outcome": "success"}]


USE = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "a.txt", "is_error": False}
TOKENS = {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 4}
LINES: dict[str, list[Json]] = {
    "claude": [
        *hook("SessionStart", "SessionStart:startup"),
        stream("message_start", message={"id": "m"}),
        block("thinking", thinking=""),
        delta("thinking_delta", thinking="hm"),
        stream("content_block_stop", index=0),
        block("text", text=""),
        delta("text_delta", text="I "),
        delta("text_delta", text="look."),
        stream("content_block_stop", index=0),
        block("tool_use", id="t", name="Bash", input={}),
        delta("input_json_delta", partial_json='{"command": "ls"}'),
        {"type": "assistant", "message": {"id": "m", "content": [USE]}},
        stream("content_block_stop", index=0),
        stream("message_stop"),
        {"type": "user", "message": {"role": "user", "content": [RESULT]}},
        *hook("Notification", "Notification"),
        *hook("Stop", "Stop"),
        {"type": "result", "subtype": "success", "is_error": False, "result": "I look.", "usage": TOKENS},
    ],
    "codex": [{"text": "Done."}],
    "gemini": [{"text": "Do"}, {"candidates": [{"content": {"parts": [{"text": "ne."}]}}]}],
}
MAPPED: dict[str, list[Json]] = {
    "claude": [
        {"kind": "thinking", "text": "hm"},
        {"kind": "agent_token", "text": "I "},
        {"kind": "agent_token", "text": "look."},
        {"kind": "tool_call", "id": "t", "name": "Bash", "status": "started", "detail": "ls", "input": {"command": "ls"}},
        {"kind": "tool_result", "tool_call_id": "t", "output": "a.txt", "is_error": False},
        {"kind": "tool_call", "id": "t", "name": "Bash", "status": "completed"},
        {"kind": "usage", **USAGE},
    ],
    "codex": [{"kind": "agent_token", "text": "Done."}],
    "gemini": [{"kind": "agent_token", "text": "Do"}, {"kind": "agent_token", "text": "ne."}],
}
TASK = "--version of /this\nplease"
BY_STDIN = {"gemini": ["--prompt"]}
"""Arguments that only introduce the task. The gateway writes it to standard input: docs/protocols/execute.md."""


@pytest.mark.parametrize("driver", LINES)
async def test_one_shot_invocations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    name, *arguments, task = DRIVERS[driver]["invocation"].split()
    assert (name, task) == (driver, "<task>")
    expected = [argument for argument in arguments if argument not in BY_STDIN.get(driver, [])]
    program = write_program(tmp_path / name, PROGRAM.format(expected=expected))
    program.with_suffix(".jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES[driver]))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    async with run_gateway(gateway_config(tmp_path)) as running:
        found = await run(running, driver, TASK, model="large")
    assert found == [*MAPPED[driver], {"kind": "session_end", "exit_code": 0}]
    call = json.loads(program.with_suffix(".call").read_text())
    assert "large" in " ".join(call["argv"][len(expected) :])
    assert TASK not in call["argv"] and call["stdin"] == TASK
