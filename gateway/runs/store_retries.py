"""Retries of a write to the store that a run depends on, while the store is locked or its disk is full."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from drivers.runtime.clock import Clock
from gateway.errors import StoreUnavailable
from gateway.events.event_log import RETRY, STOP_TIMEOUT, STORE_TIMEOUT

log = logging.getLogger(__name__)

Result = TypeVar("Result")


async def retried(write: Callable[[], Awaitable[Result]], stop: asyncio.Event, clock: Clock) -> Result:
    """Repeat a write until it succeeds.

    Raises its last error after STORE_TIMEOUT. Once `stop` is set, it raises its next error, or
    StoreUnavailable if the write takes longer than STOP_TIMEOUT.
    """
    deadline = clock.monotonic() + STORE_TIMEOUT
    while True:
        writing = asyncio.ensure_future(write())
        try:
            await _wait(writing, stop, clock)
            if not writing.done():
                raise StoreUnavailable("the store cannot be written in time")
        except BaseException:
            # The write goes on, and its result is not awaited any more.
            writing.add_done_callback(_log_failure)
            raise
        error = writing.exception()
        if error is None:
            return writing.result()
        if stop.is_set() or clock.monotonic() > deadline:
            raise error
        log.warning("a write to the store failed; trying again in %g s: %s", RETRY, error)
        with suppress(TimeoutError):
            async with clock.timeout(RETRY):
                await stop.wait()


async def _wait(work: asyncio.Future[Result], stop: asyncio.Event, clock: Clock) -> None:
    """Wait for the work, and once `stop` is set for STOP_TIMEOUT more seconds."""
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            await clock.wait((work,), STOP_TIMEOUT)
    finally:
        stopping.cancel()


def _log_failure(writing: asyncio.Future[Result]) -> None:
    if not writing.cancelled() and (error := writing.exception()) is not None:
        log.warning("a write to the store failed: %s", error)
