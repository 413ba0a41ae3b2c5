"""The outcome of a check: it passed, it failed and why, or it could not be made."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from drivers.testing.driver_under_test import Setup

Status = Literal["passed", "failed", "skipped"]


class Failed(Exception):
    """The driver violates the contract. The text describes what it does instead."""


class Skipped(Exception):
    """The check cannot be made on this driver. The text is the reason."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be so. `run` raises Failed or Skipped, and returns what it has checked if that is not the promise."""

    name: str
    promise: str
    run: Callable[[Setup], Awaitable[str | None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a check: `text` is what was checked, or why it failed or was skipped."""

    check: str
    status: Status
    text: str


async def outcome_of(check: Check, setup: Setup) -> Outcome:
    """Make one check; whatever the driver raises is a failure, with its position in the code."""
    try:
        checked = await check.run(setup)
    except Failed as failed:
        return Outcome(check.name, "failed", str(failed))
    except Skipped as skipped:
        return Outcome(check.name, "skipped", str(skipped))
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raised = f"{type(error).__name__}: {error}"
        return Outcome(check.name, "failed", f"it raised {raised} ({frame.filename}:{frame.lineno}, in {frame.name})")
    return Outcome(check.name, "passed", checked or check.promise)
