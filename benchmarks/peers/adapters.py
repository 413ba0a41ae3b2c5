"""`python -m benchmarks.peers.adapters [ROUNDS]`: times the start and the turns of `portico acp` beside the vendors' adapters.

Both run the same CLI against the same model server on loopback (`tests/real/acp/vendors.py`), which `make test-real` and
`make bench-peers` install.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.real.acp.stdio_agent import StdioAgent
from tests.real.acp.vendors import Bench, Side, claude_bench, codex_bench

ROUNDS = 7
WARM_TURNS = 8
PAUSE = 0.05
"""Between warm turns, in seconds."""
BEFORE_PROMPT = 2.0
"""Seconds in which a user writes the first prompt of the second session."""
TOLERANCE = 1.1
"""With codex, the CLI takes nearly all of a turn, and the medians of both sides differ by less than those of two runs."""
LINGER = 60.0
"""Seconds that the daemon is kept for the next start: longer than the other sides of a round take."""
BENCHES: dict[str, Callable[[Path, Side, float], AbstractAsyncContextManager[Bench]]] = {
    "claude": claude_bench,
    "codex": codex_bench,
}
NAMES: dict[tuple[str, Side, float], str] = {
    ("claude", "vendor", 0.0): "claude-agent-acp",
    ("claude", "portico", LINGER): "Portico, claude",
    ("claude", "portico", 0.0): "Portico, claude, which starts the daemon",
    ("codex", "vendor", 0.0): "codex-acp",
    ("codex", "portico", LINGER): "Portico, codex",
    ("codex", "portico", 0.0): "Portico, codex, which starts the daemon",
}
PACKAGES = """
import gc, os
gc.disable()
import pydantic, sqlite3
os._exit(0)
"""
FLOOR = {"python -c pass": "pass", "imports of pydantic and sqlite3": PACKAGES}
"""Programs that do what each start of a process of Portico does at least."""
HEADINGS = (
    "launch to `initialize`",
    "`session/new`",
    "first prompt to first token",
    "launch to first token",
    "warm prompt to first token",
    "warm turn",
    "first prompt to first token, 2 s after `session/new`",
)


@dataclass
class Samples:
    """What was measured of one side, in seconds, one sample a round."""

    initialized: list[float] = field(default_factory=list)
    created: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    launch: list[float] = field(default_factory=list)
    warm_first: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    written: list[float] = field(default_factory=list)

    def columns(self) -> list[list[float]]:
        return [self.initialized, self.created, self.first, self.launch, self.warm_first, self.warm, self.written]


@dataclass
class Timings:
    """The samples of each side, and of each program of FLOOR in seconds."""

    sides: dict[str, Samples] = field(default_factory=lambda: {name: Samples() for name in NAMES.values()})
    floor: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in FLOOR})


def _end_lingering(folder: Path) -> None:
    for record in folder.rglob("acp-socket.json"):
        with suppress(ProcessLookupError):
            os.kill(json.loads(record.read_text())["pid"], signal.SIGTERM)


async def measure(bench: Bench, samples: Samples) -> None:
    """Start the agent, open a session and later a second one, and take one sample of each figure."""
    began = time.perf_counter()
    async with bench.start() as agent:
        await agent.request("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        initialized = time.perf_counter()
        created = await agent.request("session/new", {"cwd": str(bench.work), "mcpServers": []})
        opened = time.perf_counter()
        first, _ = await _turn(agent, created["sessionId"])
        turns = []
        for _ in range(WARM_TURNS):
            await asyncio.sleep(PAUSE)
            turns.append(await _turn(agent, created["sessionId"]))
        second = await agent.request("session/new", {"cwd": str(bench.work), "mcpServers": []})
        await asyncio.sleep(BEFORE_PROMPT)
        written, _ = await _turn(agent, second["sessionId"])
    samples.initialized.append(initialized - began)
    samples.created.append(opened - initialized)
    samples.first.append(first)
    samples.launch.append(opened - began + first)
    samples.warm_first.append(statistics.median(first for first, _ in turns))
    samples.written.append(written)
    samples.warm.append(statistics.median(whole for _, whole in turns))


async def _turn(agent: StdioAgent, session: str) -> tuple[float, float]:
    """Return the seconds from a prompt to the first text, and to its answer."""
    count = len(agent.frames)
    began = time.perf_counter()
    await agent.prompt(session, "[[plain]]")
    ended = time.perf_counter()
    texts = [at for at, frame in agent.frames[count:] if _is_text(frame)]
    if not texts:
        raise RuntimeError("a turn without text")
    return texts[0] - began, ended - began


def _is_text(frame: dict[str, Any]) -> bool:
    update = frame.get("params", {}).get("update", {})
    return bool(update.get("sessionUpdate") == "agent_message_chunk")


async def measure_floor(samples: dict[str, list[float]]) -> None:
    """Take one sample of the seconds that each program of FLOOR takes."""
    for name, code in FLOOR.items():
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
        if await process.wait():
            raise RuntimeError(f"{name}: exit code {process.returncode}")
        samples[name].append(time.perf_counter() - began)


async def compare(rounds: int) -> Timings:
    """Run all rounds, each side in another order. The first start of each side, whose home is empty, is not counted.

    So each later start of a side with LINGER finds the daemon of the one before.
    """
    found = Timings()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="portico-adapters-", ignore_cleanup_errors=True)))
        stack.callback(_end_lingering, folder)
        benches = {}
        for (cli, side, linger), name in NAMES.items():
            base = folder / f"{cli}-{side}-{linger:.0f}"
            base.mkdir()
            benches[name] = await stack.enter_async_context(BENCHES[cli](base, side, linger))
            await measure(benches[name], Samples())
        for number in range(rounds):
            names = list(benches)[:: 1 if number % 2 == 0 else -1]
            for name in names:
                sys.stderr.write(f"round {number + 1} of {rounds}: {name}\n")
                await measure(benches[name], found.sides[name])
            await measure_floor(found.floor)
    return found


def table(found: Timings) -> str:
    """Return the medians as two tables in Markdown: of the sides, and of the floor."""
    rows = [f"| | {' | '.join(HEADINGS)} |", f"|---|{'---|' * len(HEADINGS)}"]
    for name, samples in found.sides.items():
        rows.append(f"| {name} | {' | '.join(_middle(column) for column in samples.columns())} |")
    rows += ["", "| the whole process | |", "|---|---|"]
    rows += [f"| {name} | {_middle(column)} |" for name, column in found.floor.items()]
    return "\n".join(rows)


def _middle(column: list[float]) -> str:
    middle, low, high = statistics.median(column), min(column), max(column)
    if middle < 1:
        return f"{middle * 1000:.0f} ms ({low * 1000:.0f} .. {high * 1000:.0f})"
    return f"{middle:.2f} s ({low:.2f} .. {high:.2f})"


def behind(found: Timings) -> list[str]:
    """Return what takes longer with Portico than with the vendor's adapter: the first token after the launch, or a warm turn."""
    slow = []
    for cli in BENCHES:
        portico, vendor = found.sides[NAMES[cli, "portico", LINGER]], found.sides[NAMES[cli, "vendor", 0.0]]
        for name, ours, theirs in (
            ("launch to first token", portico.launch, vendor.launch),
            ("warm turn", portico.warm, vendor.warm),
        ):
            if statistics.median(ours) > TOLERANCE * statistics.median(theirs):
                slow.append(f"{name} of {cli}")
    return slow


def main() -> int:
    """Measure and print the table. Return 1 if something takes longer than with the vendor's adapter."""
    found = asyncio.run(compare(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS))
    sys.stdout.write(f"{table(found)}\n")
    slow = behind(found)
    for what in slow:
        sys.stdout.write(f"\nBehind: {what}\n")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
