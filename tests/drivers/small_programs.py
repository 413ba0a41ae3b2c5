"""Small programs that replace a CLI, and helpers that read the output of processes and agents."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import psutil

from drivers.contract.agent import Prompt
from drivers.contract.agent_specs import Limits
from drivers.contract.events import OutputEvent, SessionEnd
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.process import Process
from drivers.runtime.process_tree import MARKER
from tests.support.waiting import wait_until

PRELUDE = """
import json, os, signal, subprocess, sys, time
def emit(kind, **fields): print(json.dumps({"kind": kind, **fields}), flush=True)
def read():
    line = sys.stdin.readline()
    return json.loads(line) if line else sys.exit(0)
def child(code, **how): return subprocess.Popen([sys.executable, "-I", "-S", "-c", code], **how)
def stray():
    '''A grandchild that lost its parent and left for a session of its own; it has written its pid then.'''
    written, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            print(os.getpid(), flush=True)
            os.closerange(0, 3)
            os.close(writing)
            time.sleep(600)
        os._exit(0)
    os.close(writing)
    os.read(written, 1)
    os.close(written)
    os.wait()
"""
LIMITS = Limits(start=30, idle=30, total=60, grace=10)

StartProcess = Callable[..., Coroutine[Any, Any, Process]]
OpenAgent = Callable[..., Coroutine[Any, Any, CliAgent]]


def python(code: str) -> tuple[str, ...]:
    """The command line that runs this code after the prelude."""
    return sys.executable, "-I", "-S", "-c", PRELUDE + code


async def lines_of(process: Process) -> list[bytes]:
    """Every line until the end of its output."""
    lines: list[bytes] = []
    while ready := await asyncio.wait_for(process.read_lines(), 60):
        lines += ready
    return lines


async def first_line(process: Process) -> bytes:
    """The only line that a process has written so far."""
    (line,) = await asyncio.wait_for(process.read_lines(), 60)
    return line


async def to_end(agent: CliAgent) -> list[OutputEvent]:
    """The events of the run, `session_end` last."""
    events: list[OutputEvent] = []
    while not (events and events[-1].kind == "session_end"):
        events += await asyncio.wait_for(agent.receive(), 60)
    return events


async def until(agent: CliAgent, kind: str) -> list[OutputEvent]:
    """The events up to the first of this kind, with those of the same read."""
    events: list[OutputEvent] = []
    while not any(event.kind == kind for event in events):
        events += await asyncio.wait_for(agent.receive(), 60)
    return events


async def ask(agent: CliAgent, text: str = "go") -> list[OutputEvent]:
    await agent.prompt(Prompt(text))
    return await to_end(agent)


def text_in(events: Sequence[OutputEvent], kind: str = "agent_token") -> str:
    return "".join(event.text for event in events if event.kind == kind)  # type: ignore[union-attr]


def end_of(events: Sequence[OutputEvent]) -> SessionEnd:
    """The last event, which is the only `session_end`."""
    assert [event.kind for event in events].count("session_end") == 1
    assert isinstance(events[-1], SessionEnd)
    return events[-1]


def shown(events: Sequence[OutputEvent]) -> list[dict[str, Any]]:
    """The events as JSON, without the duration of the run."""
    found = [json.loads(event.encode()) for event in events]
    for event in found:
        event.pop("duration_ms", None)
    return found


def marked(instance: str) -> list[psutil.Process]:
    """The processes that run and have a marker of this instance in their environment."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARKER, "").startswith(f"{instance}.") and not gone(process.pid):
                found.append(process)
    return found


def gone(pid: int) -> bool:
    """Whether this process has ended; a zombie has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def until_gone(pid: int) -> None:
    """Wait until this process has ended."""
    await wait_until(lambda: gone(pid), f"process {pid} has ended")
