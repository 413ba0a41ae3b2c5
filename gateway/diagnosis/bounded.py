"""Calls that may block for ever: accesses of a file system or a server that does not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.file_threads import in_thread

Result = TypeVar("Result")

ANSWER_SECONDS = 5.0
"""Seconds for each question to the file system, or to the daemon."""


async def bounded(call: Callable[[], Result], seconds: float = ANSWER_SECONDS, clock: Clock = SYSTEM_CLOCK) -> Result:
    """Call a function in a thread and return its result. Raises what it raises, and TimeoutError after so many seconds.

    The thread is left then. The end of the process does not wait for it.
    """
    async with clock.timeout(seconds):
        return await in_thread(call, daemon=True)
