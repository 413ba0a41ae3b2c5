"""`python -m benchmarks.peers [--quick] [--svg PATH]`: compares the gateway with other programs that serve agents, in Markdown.

Each round starts one side after the other, in another order, and takes all figures of it; the table has the medians of seven
rounds. Everything is on loopback, with an empty home and no key, and one agent for all. `make bench-peers` installs the others.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import adapters, losses
from benchmarks.peers.graph import Line, chart
from benchmarks.peers.sides import PACKAGES, SIDES, Floor, Portico, Session, Side
from benchmarks.peers.wire import Turn
from benchmarks.servers import ROOT

ROUNDS = 7
BURST, FAN, SESSIONS = 10_000, 400, 32
STEPS = (1, 2, 4, 8, 16, 32)
WARM_TURNS = 15
PAUSE = 0.02
"""Between short turns, in seconds: without it, the caches of the processor make all sides several times faster."""
IDLE_SECONDS = 0.7
HEADINGS = (
    "burst, events/s",
    "delivered",
    "warm: request to first event",
    "32 sessions of 400 events, agents started",
    "command to healthy",
    "idle MB",
)
SVG = ROOT / "docs" / "benchmarks-peers.svg"
ROUND_SECONDS = 60.0
"""Maximum time of one side in one round."""


@dataclass
class Samples:
    """What was measured of one side, one sample a round; `rates` and `firsts` by number of sessions."""

    start: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    burst: list[float] = field(default_factory=list)
    delivered: list[float] = field(default_factory=list)
    fan: list[float] = field(default_factory=list)
    fan_delivered: list[float] = field(default_factory=list)
    rates: dict[int, list[float]] = field(default_factory=dict)
    firsts: dict[int, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


async def measure(side: Side, samples: Samples) -> None:
    """Start a side, take one sample of each figure, and stop it."""
    try:
        samples.start.append(await side.start())
        await asyncio.sleep(IDLE_SECONDS)
        samples.memory.append(side.memory())
        async with asyncio.timeout(ROUND_SECONDS):
            session = await side.session()
            await _measure_one(session, samples)
            await _measure_many(side, samples)
    except Exception as error:
        samples.failures.append(f"{type(error).__name__}: {error}")
    finally:
        await side.stop()


async def _measure_one(session: Session, samples: Samples) -> None:
    firsts = []
    for _ in range(WARM_TURNS):
        firsts.append((await session.run(1)).first or 0.0)
        await asyncio.sleep(PAUSE)
    samples.first.append(statistics.median(firsts[3:]) * 1000)
    for _ in range(2):
        turn = await session.run(BURST)
        await asyncio.sleep(10 * PAUSE)
    # The first one is a warm-up.
    delivered = turn.delivered(BURST)
    samples.burst.append(delivered / turn.seconds)
    samples.delivered.append(delivered / BURST)


async def _measure_many(side: Side, samples: Samples) -> None:
    async def begin() -> tuple[Session, Turn]:
        session = await side.session()
        return session, await session.run(FAN)

    began = time.perf_counter()
    opened = await asyncio.gather(*(begin() for _ in range(SESSIONS)))
    samples.fan.append(max(turn.ended for _, turn in opened) - began)
    samples.fan_delivered.append(sum(turn.delivered(FAN) for _, turn in opened) / SESSIONS / FAN)
    sessions = [session for session, _ in opened]
    for count in STEPS:
        await asyncio.sleep(10 * PAUSE)
        began = time.perf_counter()
        turns = await asyncio.gather(*(session.run(FAN) for session in sessions[:count]))
        took = max(turn.ended for turn in turns) - began
        samples.rates.setdefault(count, []).append(sum(turn.delivered(FAN) for turn in turns) / took)
        samples.firsts.setdefault(count, []).append(statistics.median(turn.first or 0.0 for turn in turns) * 1000)


def table(found: dict[type[Side], Samples]) -> str:
    """Return the medians as a table in Markdown."""
    rows = [
        f"| | {' | '.join(HEADINGS)} |",
        f"|---|{'---|' * len(HEADINGS)}",
    ]
    for kind, samples in found.items():
        version = f" {kind().version}" if kind().version else ""
        cells = [
            _middle([rate / 1000 for rate in samples.burst], ".0f", "k"),
            _share(samples.delivered),
            _middle(samples.first, ".2f", " ms"),
            _middle(samples.fan, ".2f", " s") + _loss(samples.fan_delivered),
            _middle(samples.start, ".2f", " s"),
            _middle(samples.memory, ".0f", ""),
        ]
        rows.append(f"| {kind.name}{version} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _middle(samples: list[float], digits: str, unit: str) -> str:
    if not samples:
        return "failed"
    middle, low, high = (format(value, digits) for value in (statistics.median(samples), min(samples), max(samples)))
    return f"{middle}{unit}" if low == high else f"{middle}{unit} ({low} .. {high})"


def _share(shares: list[float]) -> str:
    if not shares:
        return "failed"
    low, high = (f"{value:.1%}".replace(".0%", "%") for value in (min(shares), max(shares)))
    return "all" if min(shares) == 1 else low if low == high else f"{low} .. {high}"


def _loss(shares: list[float]) -> str:
    return "" if not shares or min(shares) == 1 else f", delivered {_share(shares)}"


def lines(found: dict[type[Side], Samples], values: Callable[[Samples], dict[int, list[float]]]) -> list[Line]:
    """Return the medians over the number of sessions, a line for each side."""
    return [
        Line(kind.name, [(count, statistics.median(values(samples)[count])) for count in values(samples)])
        for kind, samples in found.items()
    ]


def machine() -> str:
    """Return the date, the command and the machine, in a sentence."""
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    system = f"{platform.system()} {platform.release().split('-')[0]} ({platform.machine()})"
    versions = f"Python {platform.python_version()}, node {node}"
    started = time.strftime("%Y-%m-%d, %H:%M")
    return f"{started}, `make bench-peers`, {os.cpu_count()} cores, {system}, {versions}; load before: {os.getloadavg()[0]:.1f}."


async def compare(rounds: int) -> dict[type[Side], Samples]:
    """Run all rounds, after a start of the gateway that writes byte code."""
    await measure(Portico(), Samples())
    found: dict[type[Side], Samples] = {kind: Samples() for kind in SIDES}
    for number in range(rounds):
        shift = number % len(SIDES)
        for kind in SIDES[shift:] + SIDES[:shift]:
            sys.stderr.write(f"round {number + 1} of {rounds}: {kind.name}\n")
            await measure(kind(), found[kind])
    return found


async def lose() -> dict[type[Side], losses.Kept]:
    """Interrupt a client and kill the program, for each side that has connections."""
    kept = {}
    for kind in losses.SIDES:
        try:
            kept[kind] = await losses.measure(kind())
        except Exception as error:
            kept[kind] = losses.Kept(0, 0, 0)
            sys.stderr.write(f"failed: {kind.name}: {type(error).__name__}: {error}\n")
    return kept


def main() -> int:
    """Measure, print the tables, and write the graph.

    Return 1 if the gateway or the floor failed or lost events, or if a warm turn takes longer than with a vendor's adapter.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, and no graph unless --svg is given")
    parser.add_argument("--svg", type=Path, help=f"where the graph is written; {SVG.relative_to(ROOT)} if not --quick")
    given = parser.parse_args()
    if not PACKAGES.is_dir():
        parser.error("the other programs are not installed: make bench-peers")
    head = machine()
    found = asyncio.run(compare(1 if given.quick else ROUNDS))
    kept = asyncio.run(lose())
    timed = asyncio.run(adapters.compare(1 if given.quick else ROUNDS))
    repeated = "One round." if given.quick else f"Medians of {ROUNDS} rounds (minimum .. maximum)."
    sys.stdout.write(f"{head} {repeated}\n\n{table(found)}\n\n{losses.table(kept)}\n\n{adapters.table(timed)}\n")
    for kind, samples in found.items():
        for failure in samples.failures:
            sys.stdout.write(f"\nFailed: {kind.name}: {failure}\n")
    if path := given.svg or (None if given.quick else SVG):
        whole = {kind: samples for kind, samples in found.items() if samples.rates}
        panels = [
            ("Events per second, all sessions", lines(whole, lambda samples: samples.rates)),
            ("Request to first event, ms (median of the sessions)", lines(whole, lambda samples: samples.firsts)),
        ]
        path.write_text(chart("400 events in each of 1 to 32 sessions at once, agents warm", "sessions", panels))
    ours = [samples for kind, samples in found.items() if issubclass(kind, (Portico, Floor))]
    failed = any(one.failures or min(one.delivered + one.fan_delivered, default=0.0) < 1 for one in ours)
    lost = [one for kind, one in kept.items() if issubclass(kind, Portico) and min(one.returned, one.restarted) < BURST]
    slow = adapters.behind(timed)
    for what in slow:
        sys.stdout.write(f"\nBehind: {what}\n")
    return 1 if failed or lost or slow else 0


if __name__ == "__main__":
    sys.exit(main())
