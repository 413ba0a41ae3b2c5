"""The conformance check of a driver: what the gateway relies on, checked with the driver's own program.

In a test: `check_driver(MyDriver(), program="…")`; by hand: `python -m drivers.testing my_package:MyDriver`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from drivers.runtime.cli_driver import Driver
from drivers.testing import check_codecs, check_info, check_runs, check_tools
from drivers.testing.check_outcome import Check, Outcome, outcome_of
from drivers.testing.driver_under_test import PROMPT, Setup, ToolCases

__all__ = ["CHECKS", "PROMPT", "DriverCheckFailed", "Outcome", "Setup", "ToolCases", "check_driver", "examine"]

CHECKS: tuple[Check, ...] = (*check_info.CHECKS, *check_runs.CHECKS, *check_tools.CHECKS, *check_codecs.CHECKS)


class DriverCheckFailed(AssertionError):
    """The text has every check that failed, and why."""


async def examine(setup: Setup, selects: Callable[[Check], bool] = lambda check: True) -> AsyncIterator[Outcome]:
    """Yield the outcomes as they come. After a failure of `info` or `program` no other check is made."""
    for check in CHECKS:
        if selects(check) or check.name in ("info", "program"):
            outcome = await outcome_of(check, setup)
            yield outcome
            if outcome.status == "failed" and check.name in ("info", "program"):
                return


def check_driver(driver: Driver, *, folder: Path | None = None, **setup: Any) -> list[Outcome]:
    """Check a driver; the keyword arguments are fields of `Setup`. Raises DriverCheckFailed. Call it outside of an event loop."""
    with tempfile.TemporaryDirectory(prefix="portico-check-") as temporary:
        outcomes = asyncio.run(_all(Setup(driver, folder or Path(temporary).resolve(), **setup)))
    failed = [f"{outcome.check}: {outcome.text}" for outcome in outcomes if outcome.status == "failed"]
    if failed:
        raise DriverCheckFailed(f"driver {driver.name!r}: {len(failed)} checks failed\n" + "\n".join(failed))
    return outcomes


async def _all(setup: Setup) -> list[Outcome]:
    return [outcome async for outcome in examine(setup)]
