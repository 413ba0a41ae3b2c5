"""Compares short measurements with recorded ones. `python -m benchmarks --guard` fails if one is much worse, `--record` records.

Only ratios to a floor are compared, since times depend on the machine. A time and its floor are measured in turn, and the ratio
is the median of these pairs. Each ratio is a cost, so that more is worse.

Where the system permits it (root on Linux), all processes of a measurement have one processor and real-time priority, so that
other work on the machine does not slow them. With more processors the ratios are the same or less.
"""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, median_ratio
from benchmarks.latency import FIRST_EVENT, IMPORTS, first_event, one_start
from benchmarks.memory import IDLE, idle_memory, imports_memory
from benchmarks.servers import own_processor, portico, seconds_of
from benchmarks.throughput import burst

RECORDED = Path(__file__).parent / "recorded.json"
TOLERANCE = 0.25
"""By how much the best try may be worse than the recorded ratio."""
TRIES = 3


@dataclass(frozen=True)
class Comparison:
    """The tries of one ratio, and the recorded one. `recorded` is None if the file does not have it."""

    name: str
    tries: Sequence[float]
    recorded: float | None

    @property
    def limit(self) -> float | None:
        """The highest ratio that passes: the recorded ratio with the tolerance, but no more than the bound."""
        return None if self.recorded is None else min(self.recorded * (1 + TOLERANCE), BOUNDS.get(self.name, math.inf))

    @property
    def ok(self) -> bool:
        """Whether the best try is within the limit. A ratio that is not recorded is not."""
        return self.limit is not None and min(self.tries) <= self.limit


async def guard() -> bool:
    """Measure, print a table on standard error, and return whether all ratios are within their limits.

    A ratio that is not is measured again, three times at most. Raises the error of a measurement that fails: lost events, for
    example, are not tried again.
    """
    recorded = load(RECORDED)
    tries: dict[str, list[float]] = {name: [] for name in RATIOS}
    with own_processor() as alone:
        for _ in range(TRIES):
            for name, measure in RATIOS.items():
                if not tries[name] or not Comparison(name, tries[name], recorded.get(name)).ok:
                    tries[name].append(await measure())
    compared = [Comparison(name, values, recorded.get(name)) for name, values in tries.items()]
    sys.stderr.write(table(compared) + "\n")
    if not alone:
        sys.stderr.write("Other work on this machine could slow the measured processes: real-time priority is not permitted.\n")
    return all(one.ok for one in compared)


async def record(machine: Mapping[str, object]) -> None:
    """Measure each ratio three times, and write the medians to benchmarks/recorded.json.

    Raises PermissionError where other work on the machine could change them.
    """
    tries: dict[str, list[float]] = {name: [] for name in RATIOS}
    with own_processor() as alone:
        if not alone:
            raise PermissionError(
                "ratios are recorded with real-time priority, which is not permitted here: try it as root on Linux"
            )
        for _ in range(TRIES):
            for name, measure in RATIOS.items():
                tries[name].append(await measure())
    medians = {name: round(statistics.median(values), 3) for name, values in tries.items()}
    document = {
        "command": "python -m benchmarks --record",
        "date": time.strftime("%Y-%m-%d"),
        "machine": dict(machine),
        "ratios": medians,
    }
    RECORDED.write_text(json.dumps(document, indent=2) + "\n")
    sys.stderr.write("".join(f"{name}: {_values(tries[name])}, recorded {medians[name]:g}\n" for name in RATIOS))


def load(path: Path) -> dict[str, float]:
    """Return the recorded ratios."""
    return {name: float(value) for name, value in json.loads(path.read_text())["ratios"].items()}


def table(compared: Sequence[Comparison]) -> str:
    """Return the comparisons as a table in Markdown."""
    rows = ["| ratio | measured | recorded | limit | |", "|---|---|---|---|---|"]
    for one in compared:
        recorded, limit = ("none" if value is None else f"{value:.3g}" for value in (one.recorded, one.limit))
        rows.append(f"| {one.name} | {_values(one.tries)} | {recorded} | {limit} | {'ok' if one.ok else 'WORSE'} |")
    return "\n".join(rows)


def _values(tries: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in tries)


async def _burst() -> float:
    return 1 / _by_name(await burst(True))["ratio"]


async def _first_event() -> float:
    return _by_name(await first_event(True))["ratio"]


async def _start() -> float:
    """The median of nine pairs, after a start that writes byte code."""
    daemon, imports = [], []
    with tempfile.TemporaryDirectory(prefix="portico-bench-") as folder:
        for _ in range(10):
            daemon.append((await one_start())[1])
            imports.append(await asyncio.to_thread(seconds_of, [sys.executable, "-c", IMPORTS], Path(folder)))
    return median_ratio(daemon[1:], imports[1:])


async def _memory() -> float:
    async with portico() as daemon:
        idle = await idle_memory(daemon)
    return idle / await asyncio.to_thread(imports_memory)


def _by_name(figures: Sequence[Figure]) -> dict[str, float]:
    return {figure.name: figure.value for figure in figures}


RATIOS: dict[str, Callable[[], Awaitable[float]]] = {
    "burst: time of 10,000 events / floor": _burst,
    "first event: time / floor": _first_event,
    "start: time to healthy / imports": _start,
    "memory: idle / imports": _memory,
}
BOUNDS = {"first event: time / floor": FIRST_EVENT, "memory: idle / imports": IDLE}
"""The bounds of ratios, which hold whatever is recorded."""
