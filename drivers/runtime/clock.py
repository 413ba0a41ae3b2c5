"""Clock by which limits of time are read and waited for. Tests pass a clock that they turn by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol


class Timer(Protocol):
    """Call that is made later."""

    def cancel(self) -> None:
        """Make the call never. It may have been made already."""

    def when(self) -> float:
        """Return the moment of the call, in seconds of the clock's `monotonic`."""


class Timeout(Protocol):
    """Asynchronous context manager that raises TimeoutError, as `asyncio.timeout` does."""

    async def __aenter__(self) -> Timeout: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None: ...

    def reschedule(self, when: float | None) -> None:
        """Move the limit to another moment of the clock's `monotonic`, or remove it. Raises RuntimeError if it has passed."""

    def expired(self) -> bool:
        """Whether the limit has passed."""


class Clock:
    """Clock of this machine. All times are in seconds.

    An event loop has the same monotonic clock: what is read here may be given to its timers.
    """

    def monotonic(self) -> float:
        """Return a time that only grows, for durations and limits."""
        return time.monotonic()

    def time(self) -> float:
        """Return the seconds since the epoch, for what is stored or compared with other machines."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call `callback` at a moment of `monotonic`, in the running event loop."""
        return asyncio.get_running_loop().call_at(when, callback, *args)

    def timeout(self, seconds: float | None) -> Timeout:
        """Return a limit for the body of an `async with`; None is no limit until it is rescheduled."""
        return asyncio.timeout(seconds)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call `callback` after so many seconds, in the running event loop."""
        return self.call_at(self.monotonic() + seconds, callback, *args)

    async def wait(
        self, tasks: Iterable[asyncio.Future[Any]], seconds: float | None, return_when: str = asyncio.ALL_COMPLETED
    ) -> tuple[set[asyncio.Future[Any]], set[asyncio.Future[Any]]]:
        """Wait for tasks as `asyncio.wait` does, for so many seconds at most. Return the done tasks, and the other tasks."""
        tasks = set(tasks)
        with suppress(TimeoutError):
            async with self.timeout(seconds):
                await asyncio.wait(tasks, return_when=return_when)
        done = {task for task in tasks if task.done()}
        return done, tasks - done


SYSTEM_CLOCK = Clock()
"""The clock of this machine."""
