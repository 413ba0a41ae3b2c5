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
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
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
BENCHES = {"claude": claude_bench, "codex": codex_bench}
NAMES: dict[tuple[str, Side, float], str] = {
    ("claude", "vendor", 0.0): "claude-agent-acp",
    ("claude", "portico", LINGER): "Portico, claude",
    ("claude", "portico", 0.0): "Portico, claude, which starts the daemon",
    ("codex", "vendor", 0.0): "codex-acp",
    ("codex", "portico", LINGER): "Portico, codex",
    ("codex", "portico", 0.0): "Portico, codex, which starts the daemon",
}
LAUNCH, WARM = "launch to first token", "warm turn"
COLUMNS = (
    "launch to `initialize`",
    "`session/new`",
    "first prompt to first token",
    LAUNCH,
    "warm prompt to first token",
    WARM,
    "first prompt to first token, 2 s after `session/new`",
)
Samples = dict[str, list[float]]
"""What was measured of one side, by column, in seconds, one sample a round."""


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
    warm_first, warm = (statistics.median(column) for column in zip(*turns, strict=True))
    measured = (initialized - began, opened - initialized, first, opened - began + first, warm_first, warm, written)
    for name, seconds in zip(COLUMNS, measured, strict=True):
        samples[name].append(seconds)


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


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a folder, and then end the daemons that linger in it."""
    with tempfile.TemporaryDirectory(prefix="portico-adapters-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
        for record in Path(folder).rglob("acp-socket.json"):
            with suppress(ProcessLookupError):
                os.kill(json.loads(record.read_text())["pid"], signal.SIGTERM)


async def compare(rounds: int) -> dict[str, Samples]:
    """Run all rounds, each side in another order. The first start of each side, whose home is empty, is not counted.

    So each later start of a side with LINGER finds the daemon of the one before.
    """
    found: dict[str, Samples] = {name: {column: [] for column in COLUMNS} for name in NAMES.values()}
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(_folder())
        benches = {}
        for (cli, side, linger), name in NAMES.items():
            base = folder / f"{cli}-{side}-{linger:.0f}"
            base.mkdir()
            benches[name] = await stack.enter_async_context(BENCHES[cli](base, side, linger))
            await measure(benches[name], {column: [] for column in COLUMNS})
        for number in range(rounds):
            for name in list(benches)[:: 1 if number % 2 == 0 else -1]:
                sys.stderr.write(f"round {number + 1} of {rounds}: {name}\n")
                await measure(benches[name], found[name])
    return found


def table(found: dict[str, Samples]) -> str:
    """Return the medians as a table in Markdown."""
    rows = [f"| | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    for name, samples in found.items():
        rows.append(f"| {name} | {' | '.join(_middle(column) for column in samples.values())} |")
    return "\n".join(rows)


def _middle(column: list[float]) -> str:
    middle, low, high = (1000 * seconds for seconds in (statistics.median(column), min(column), max(column)))
    return f"{middle:.0f} ms ({low:.0f} .. {high:.0f})"


def behind(found: dict[str, Samples]) -> list[str]:
    """Return what takes longer with Portico than with the vendor's adapter: the first token after the launch, or a warm turn."""
    slow = []
    for cli in BENCHES:
        ours, theirs = found[NAMES[cli, "portico", LINGER]], found[NAMES[cli, "vendor", 0.0]]
        for column in (LAUNCH, WARM):
            if statistics.median(ours[column]) > TOLERANCE * statistics.median(theirs[column]):
                slow.append(f"Behind: {column} of {cli}")
    return slow


def main() -> int:
    """Measure and print the table. Return 1 if something takes longer than with the vendor's adapter."""
    found = asyncio.run(compare(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS))
    slow = behind(found)
    sys.stdout.write(f"{table(found)}\n" + "".join(f"\n{what}\n" for what in slow))
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
