"""What a check says: it passed, it failed and why, or it could not be made."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from drivers.testing.setup import Setup

Status = Literal["passed", "failed", "skipped"]


class Failed(Exception):
    """The driver does not do what the contract says; the text says what it does instead."""


class Skipped(Exception):
    """This cannot be checked on this driver; the text says why."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be so. `run` raises Failed or Skipped."""

    name: str
    promise: str
    run: Callable[[Setup], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a check: `text` is its promise, or why it failed or was skipped."""

    check: str
    status: Status
    text: str


async def outcome_of(check: Check, setup: Setup) -> Outcome:
    """Make one check; whatever the driver raises is a failure, with its place."""
    try:
        await check.run(setup)
    except Failed as failed:
        return Outcome(check.name, "failed", str(failed))
    except Skipped as skipped:
        return Outcome(check.name, "skipped", str(skipped))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error}"
        return Outcome(check.name, "failed", f"it raised {said} ({place.filename}:{place.lineno}, in {place.name})")
    return Outcome(check.name, "passed", check.promise)
