"""Awaits that a cancellation does not cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def despite_cancellation(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, also if the caller is cancelled meanwhile. The caller is cancelled after it then.

    For the end of agents: what is left of it when the event loop ends would not be done.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            # The caller gets the cancellation instead. An error that nobody reads would be logged as such.
            task.exception()
        raise
