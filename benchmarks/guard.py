"""Compares short measurements with recorded ones. `python -m benchmarks --guard` fails if one is much worse, `--record` records.

Only ratios to a floor are compared, since times depend on the machine. Each is a cost, so that more is worse.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.measurements import burst, cold, first_event, memory, start
from benchmarks.sides import own_processor

RECORDED = Path(__file__).parent / "recorded.json"
TOLERANCE = 0.25
"""By how much the best try may be worse than the recorded ratio."""
TRIES = 3
MEASURED = {one.__name__: one for one in (burst, first_event, cold, start, memory)}
"""Of each, the first ratio is compared."""


@dataclass(frozen=True)
class Comparison:
    """The tries of one ratio, and the recorded one. `recorded` is None if the file does not have it."""

    name: str
    tries: Sequence[Figure]
    recorded: float | None

    @property
    def ok(self) -> bool:
        """Whether the best try is within the tolerance and within its bound. A ratio that is not recorded is not."""
        best = min(self.tries, key=lambda figure: figure.value)
        return self.recorded is not None and best.ok and best.value <= self.recorded * (1 + TOLERANCE)


async def guard() -> bool:
    """Measure, print a table on standard error, and return whether all ratios are within their limits.

    A ratio that is not is measured again, three times at most. Raises the error of a measurement that fails: lost events, for
    example, are not tried again.
    """
    recorded = load(RECORDED)
    tries: dict[str, list[Figure]] = {name: [] for name in MEASURED}
    with own_processor() as alone:
        for _ in range(TRIES):
            for name in MEASURED:
                if not tries[name] or not Comparison(name, tries[name], recorded.get(name)).ok:
                    tries[name].append(await _ratio(name))
    compared = [Comparison(name, figures, recorded.get(name)) for name, figures in tries.items()]
    sys.stderr.write(table(compared) + "\n")
    if not alone:
        sys.stderr.write("Other work on this machine could slow the measured processes: real-time priority is not permitted.\n")
    return all(one.ok for one in compared)


async def record(machine: str) -> None:
    """Measure each ratio three times, and write the medians to benchmarks/recorded.json.

    Raises PermissionError where other work on the machine could change them.
    """
    tries: dict[str, list[Figure]] = {name: [] for name in MEASURED}
    with own_processor() as alone:
        if not alone:
            raise PermissionError(
                "ratios are recorded with real-time priority, which is not permitted here: try it as root on Linux"
            )
        for _ in range(TRIES):
            for name in MEASURED:
                tries[name].append(await _ratio(name))
    medians = {name: round(statistics.median(one.value for one in figures), 3) for name, figures in tries.items()}
    RECORDED.write_text(json.dumps({"machine": machine, "ratios": medians}, indent=2) + "\n")
    sys.stderr.write("".join(f"{name}: {_values(tries[name])}, recorded {medians[name]:g}\n" for name in MEASURED))


async def _ratio(name: str) -> Figure:
    return next(figure for figure in await MEASURED[name](True) if figure.name.endswith("ratio"))


def load(path: Path) -> dict[str, float]:
    """Return the recorded ratios."""
    return {name: float(value) for name, value in json.loads(path.read_text())["ratios"].items()}


def table(compared: Sequence[Comparison]) -> str:
    """Return the comparisons as a table in Markdown."""
    rows = ["| ratio | measured | recorded | bound | |", "|---|---|---|---|---|"]
    for one in compared:
        recorded, bound = ("none" if value is None else f"{value:.3g}" for value in (one.recorded, one.tries[0].at_most))
        rows.append(f"| {one.name} | {_values(one.tries)} | {recorded} | {bound} | {'ok' if one.ok else 'WORSE'} |")
    return "\n".join(rows)


def _values(tries: Sequence[Figure]) -> str:
    return ", ".join(f"{one.value:.3g}" for one in tries)
