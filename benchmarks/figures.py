"""The results of measurements: figures with samples and bounds, as JSON and as a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Figure:
    """A measured number. `at_least` and `at_most` are bounds; a figure without a bound is for information only."""

    name: str
    value: float
    unit: str
    samples: Sequence[float] = ()
    at_least: float | None = None
    at_most: float | None = None
    comment: str = ""

    @property
    def ok(self) -> bool:
        """Whether the bound is met."""
        return (self.at_least is None or self.value >= self.at_least) and (self.at_most is None or self.value <= self.at_most)

    @property
    def is_goal(self) -> bool:
        """Whether a bound is about speed or size, not about what must be exactly so."""
        return self.at_least != self.at_most

    @property
    def bound(self) -> str:
        if self.at_least is not None and self.at_least == self.at_most:
            return f"= {_short(self.at_least)}"
        low = f">= {_short(self.at_least)}" if self.at_least is not None else ""
        high = f"<= {_short(self.at_most)}" if self.at_most is not None else ""
        return f"{low} {high}".strip()

    def to_json(self) -> dict[str, Any]:
        """Return all fields, with the spread of the samples."""
        spread = {"min": min(self.samples), "max": max(self.samples), "n": len(self.samples)} if self.samples else None
        data = {"value": _rounded(self.value), "unit": self.unit, "bound": self.bound or None, "ok": self.ok}
        if spread:
            data["spread"] = {name: _rounded(value) for name, value in spread.items()}
        if self.comment:
            data["comment"] = self.comment
        return data


@dataclass
class Results:
    """The figures of a benchmark run, by measurement."""

    machine: dict[str, Any]
    figures: dict[str, list[Figure]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.failures and all(figure.ok for figures in self.figures.values() for figure in figures)

    def drop_goals(self) -> None:
        """Forget the bounds about speed and size."""
        for figure in (figure for figures in self.figures.values() for figure in figures if figure.is_goal):
            figure.at_least = figure.at_most = None

    def to_json(self) -> dict[str, Any]:
        measured = {name: {figure.name: figure.to_json() for figure in figures} for name, figures in self.figures.items()}
        return {"ok": self.ok, "machine": self.machine, "figures": measured, "failures": self.failures}

    def table(self) -> str:
        """Return the figures as a table."""
        rows = [("", "", "value", "unit", "min .. max (n)", "bound", "")]
        for name, figures in self.figures.items():
            rows += [(name if n == 0 else "", *_row(figure)) for n, figure in enumerate(figures)]
        rows += [(name, f"failed: {why}", "", "", "", "", "MISSED") for name, why in self.failures.items()]
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def median(name: str, samples: Sequence[float], unit: str, **more: Any) -> Figure:
    """Return a figure that is the median of its samples."""
    return Figure(name, statistics.median(samples), unit, samples, **more)


def median_ratio(ours: Sequence[float], floors: Sequence[float]) -> float:
    """Return the median of the ratios of pairs that were measured one right after the other.

    Other work on the machine, which comes and goes, slows both of a pair. It can slow the median of one side alone.
    """
    return statistics.median(one / floor for one, floor in zip(ours, floors, strict=True))


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that is at least as large as `share` of the samples."""
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def _row(figure: Figure) -> tuple[str, str, str, str, str, str]:
    spread = ""
    if len(figure.samples) > 1:
        spread = f"{_short(min(figure.samples))} .. {_short(max(figure.samples))} ({len(figure.samples)})"
    verdict = "" if not figure.bound else "ok" if figure.ok else "MISSED"
    return figure.name, _short(figure.value), figure.unit, spread, figure.bound, verdict


def _short(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _rounded(value: float) -> float:
    return value if value == int(value) else float(f"{value:.5g}")
