"""Waiting for what has no event. Events are awaited, and the clock is turned (manual_clock.py) for limits of time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

SECONDS = 60.0
"""Seconds in which a condition has to become true, also on a busy machine."""


async def wait_until(condition: Callable[[], Any], what: str = "the condition is true", seconds: float = SECONDS) -> Any:
    """Poll the condition, which may be asynchronous, and return its first true value. `what` is said by the error."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.01)
