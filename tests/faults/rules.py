"""Random shell lines that run a denied program in bash: the verdict of the rules must be a denial or a question."""

from __future__ import annotations

import asyncio

from tests.faults.campaign import Run
from tests.gateway.policy.lines_run_by_bash import missed_lines, random_line

CASES, QUICK_CASES = 60, 8
LINES = 250
"""Lines of a case. About one of twelve has no verdict, and is run."""


async def rules(run: Run) -> None:
    """Compare the analysis of random lines with what bash runs."""
    for n in range(QUICK_CASES if run.quick else CASES):
        source = run.random(n)
        lines = [random_line(source) for _ in range(LINES)]

        async def check(lines: list[str] = lines) -> list[str]:
            return [f"runs the denied program: {line!r}" for line in await asyncio.to_thread(missed_lines, lines)]

        await run.case(f"lines {n * LINES} to {(n + 1) * LINES - 1}", check)
