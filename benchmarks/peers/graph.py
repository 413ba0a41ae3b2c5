"""Line charts with logarithmic axes as an SVG, readable on light and on dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, PANEL, LEFT, TOP, GAP = 900, 300, 60, 56, 46
COLOURS = (
    # For light and for dark pages. Dashes distinguish the lines without colour.
    ("#6e7781", "#9198a1"),
    ("#bc4c00", "#f0883e"),
    ("#8250df", "#bc8cff"),
    ("#0550ae", "#58a6ff"),
    ("#1b7c83", "#39c5cf"),
    ("#116329", "#56d364"),
    ("#a40e26", "#ff7b72"),
)
DASHES = ("2 3", "7 3", "7 3", "none", "none", "none", "7 3")
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 14px; font-weight: 600 }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.line { fill: none; stroke-width: 2 }
"""
DARK = "text { fill: #e6edf3 } .grid { stroke: #3d444d }"


@dataclass(frozen=True)
class Line:
    """A named line of points."""

    name: str
    points: Sequence[tuple[float, float]]


def chart(title: str, unit: str, panels: Sequence[tuple[str, Sequence[Line]]]) -> str:
    """Return an SVG with one panel beside the other and one legend. `unit` names the horizontal axis."""
    names = [line.name for line in panels[0][1]]
    height = TOP + PANEL + 44 + 20 * math.ceil(len(names) / 2)
    width = (WIDTH - GAP) / len(panels)
    parts = [_style(len(names)), f'<text class="title" x="{LEFT}" y="20">{escape(title)}</text>']
    for number, (name, lines) in enumerate(panels):
        parts += _panel(name, unit, lines, LEFT + number * width, width - LEFT)
    for number, name in enumerate(names):
        x, y = LEFT + (number % 2) * (WIDTH / 2), TOP + PANEL + 56 + 20 * (number // 2)
        parts.append(f'<line class="line s{number}" x1="{x:.0f}" x2="{x + 34:.0f}" y1="{y - 4}" y2="{y - 4}"/>')
        parts.append(f'<text x="{x + 42:.0f}" y="{y}">{escape(name)}</text>')
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(title)}</title>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _style(count: int) -> str:
    light = "".join(
        f".s{n} {{ stroke: {COLOURS[n % len(COLOURS)][0]}; stroke-dasharray: {DASHES[n % len(DASHES)]} }}\n" for n in range(count)
    )
    dark = " ".join(f".s{n} {{ stroke: {COLOURS[n % len(COLOURS)][1]} }}" for n in range(count))
    return f"<style>{STYLE}{light}@media (prefers-color-scheme: dark) {{ {DARK} {dark} }}\n</style>"


def _panel(name: str, unit: str, lines: Sequence[Line], left: float, width: float) -> list[str]:
    xs = sorted({x for line in lines for x, _ in line.points})
    ys = [y for line in lines for _, y in line.points]
    low, high = math.log10(min(ys)) - 0.05, math.log10(max(ys)) + 0.05
    across = math.log2(xs[-1] / xs[0]) or 1.0

    def at_x(x: float) -> float:
        return left + width * math.log2(x / xs[0]) / across

    def at_y(y: float) -> float:
        return TOP + PANEL * (1 - (math.log10(y) - low) / (high - low))

    parts = [f'<text x="{left:.0f}" y="{TOP - 12}">{escape(name)}</text>']
    for y in ticks(10**low, 10**high):
        at = at_y(y)
        parts.append(f'<line class="grid" x1="{left:.0f}" x2="{left + width:.0f}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{left - 6:.0f}" y="{at + 4:.1f}" text-anchor="end">{_short(y)}</text>')
    for x in xs:
        parts.append(f'<text x="{at_x(x):.1f}" y="{TOP + PANEL + 18}" text-anchor="middle">{x:g}</text>')
    parts.append(f'<text x="{left + width / 2:.0f}" y="{TOP + PANEL + 34}" text-anchor="middle">{escape(unit)}</text>')
    for number, line in enumerate(lines):
        points = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline class="line s{number}" points="{points}"><title>{escape(line.name)}</title></polyline>')
    return parts


def ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten between two numbers."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step * 10.0**power for power in powers for step in (1, 2, 5) if low <= step * 10.0**power <= high]


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
