"""Calls of the file system for requests: in a thread each, and with a limit of time, because a network folder may not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from drivers.runtime.file_threads import in_thread
from gateway.errors import AgentProblem

TIMEOUT = 5.0
"""Seconds for the file system."""
Result = TypeVar("Result")


async def in_time(access: Callable[[], Result], what: str = "the file system") -> Result:
    """Call a function in a thread and return its result. `what` names what it accesses, for the error.

    Raises what the function raises, and AgentProblem if it has not returned in time. Its thread then goes on without a reader.
    """
    try:
        async with asyncio.timeout(TIMEOUT):
            return await in_thread(access, daemon=True)
    except TimeoutError as error:
        raise AgentProblem(f"{what} has not answered within {TIMEOUT:g} s; try again later") from error
