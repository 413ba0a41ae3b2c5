"""What must not stop half-way if its caller is cancelled, as when an ACP client disconnects, or if a part of it fails.

It knows no states.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeVar

log = logging.getLogger(__name__)

Result = TypeVar("Result")


async def completed(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, also if the caller is cancelled meanwhile; the cancellation is raised afterwards.

    A write to the store is completed in any case. The state in memory must follow it: with an event that is stored and not in
    the log, its number would be given to a second event.
    """
    ended: _Uncancellable[Result] = _Uncancellable()
    ended.by = asyncio.create_task(_run(work, ended))
    return await ended


async def unless_cancelled(work: asyncio.Task[Result]) -> Result | None:
    """Wait for work that others may cancel: None is returned then. It is cancelled with the caller."""
    try:
        return await work
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        return None


class _Uncancellable(asyncio.Future[Result]):
    """A future that is not cancelled with the task that awaits it: the task is cancelled when the future is done.

    `by` is the task that completes it, which the event loop does not keep from being collected.
    """

    by: asyncio.Task[None] | None = None

    def cancel(self, msg: Any = None) -> bool:
        return False


async def _run(work: Coroutine[Any, Any, Result], ended: asyncio.Future[Result]) -> None:
    try:
        ended.set_result(await work)
    except BaseException as error:
        ended.set_exception(error)


async def all_ended(works: Iterable[Awaitable[Any]]) -> None:
    """Wait for all parts of a shutdown at the same time. A failure is logged, and does not affect the others."""
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            log.error("a part of the shutdown failed", exc_info=result)
