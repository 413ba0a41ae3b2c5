"""What must not stop half-way if its caller is cancelled, as when the client of an ACP connection disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


async def completed(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, also if the caller is cancelled meanwhile; the cancellation is raised afterwards.

    A write to the store is completed in any case. The state in memory must follow it: with an event that is stored and not in
    the log, its number would be given to a second event.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise
