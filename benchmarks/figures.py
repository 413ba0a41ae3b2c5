"""The results of measurements: figures with samples and bounds, as a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A measured number. A figure without a bound is for information only."""

    name: str
    value: float
    unit: str
    samples: Sequence[float] = ()
    at_most: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the bound is met."""
        return self.at_most is None or self.value <= self.at_most


def median(name: str, samples: Sequence[float], unit: str) -> Figure:
    """Return a figure that is the median of its samples."""
    return Figure(name, statistics.median(samples), unit, samples)


def median_ratio(ours: Sequence[float], floors: Sequence[float]) -> float:
    """Return the median of the ratios of pairs that were measured one right after the other.

    Other work on the machine, which comes and goes, slows both of a pair. It can slow the median of one side alone.
    """
    return statistics.median(one / floor for one, floor in zip(ours, floors, strict=True))


def beside(name: str, ours: Sequence[float], floors: Sequence[float], unit: str, at_most: float | None) -> list[Figure]:
    """Return a cost, that of the floor and their ratio, which the bound is of. The first repetition of each is a warm-up."""
    return [
        median(name, ours[1:], unit),
        median(f"{name}, floor", floors[1:], unit),
        Figure(f"{name}, ratio", median_ratio(ours[1:], floors[1:]), "x floor", at_most=at_most),
    ]


def table(figures: Mapping[str, Sequence[Figure]]) -> str:
    """Return the figures of each measurement as a table in Markdown."""
    rows = ["| | value | min .. max (n) | bound | |", "|---|---|---|---|---|"]
    for measurement, found in figures.items():
        for one in found:
            spread = ""
            if len(one.samples) > 1:
                spread = f"{short(min(one.samples))} .. {short(max(one.samples))} ({len(one.samples)})"
            bound, verdict = ("", "") if one.at_most is None else (f"<= {short(one.at_most)}", "ok" if one.ok else "MISSED")
            rows.append(f"| {measurement}: {one.name} | {short(one.value)} {one.unit} | {spread} | {bound} | {verdict} |")
    return "\n".join(rows)


def short(value: float) -> str:
    """Return a number with three digits or more, and thousands with spaces."""
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
