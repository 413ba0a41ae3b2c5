"""A clock that a test turns by hand, for the product's limits of time (drivers/runtime/clock.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

from drivers.runtime.clock import Clock
from tests.support.waiting import SECONDS

Result = TypeVar("Result")
SETTLE_STEPS = 20
"""Iterations of the event loop in which tasks handle what the clock has done to them."""


class ManualClock(Clock):
    """Clock that stands still until a test calls `advance` or `expire`. Its wall clock begins at the present time."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        """The monotonic time. Tests may set it for what reads the clock; what waits for a time is called by `advance` only."""
        self._epoch = time.time() - self.now
        self._timers: list[_Timer] = []
        self._set = asyncio.Event()

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self._epoch + self.now

    async def sleep(self, seconds: float) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: over.done() or over.set_result(None))
        try:
            await over
        finally:
            timer.cancel()

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> _Timer:
        timer = _Timer(self, when, callback, args)
        self._timers.append(timer)
        if when <= self.now:
            timer.fire()
        self._set.set()
        return timer

    def timeout(self, seconds: float | None) -> _Timeout:
        return _Timeout(self, None if seconds is None else self.now + seconds)

    async def advance(self, seconds: float) -> None:
        """Let time pass: what is due is called in order, each at its own time. What that starts waits from that time on."""
        until = self.now + seconds
        while due := [timer for timer in self._timers if timer.when() <= until]:
            timer = min(due, key=_Timer.when)
            self.now = max(self.now, timer.when())
            timer.fire()
            await _settle()
        self.now = until
        await _settle()

    @property
    def waiting(self) -> int:
        """How many calls, limits and sleepers wait."""
        return len(self._timers)

    def set_wall_clock(self, by: float) -> None:
        """Change the time of day by so many seconds, as a person or a time server does."""
        self._epoch += by

    async def leap(self, seconds: float) -> None:
        """Let time pass as while this process is suspended: all that is due is called at the end of it."""
        self.now += seconds
        await self.advance(0)

    async def expire(self, seconds: float, by: int = 1) -> None:
        """Wait until somebody waits for so many seconds from now on, and let them pass; `by` is how many do so."""
        await self.waited_for(seconds, by)
        await self.advance(seconds)

    async def expire_until(self, work: Awaitable[Result], seconds: float) -> Result:
        """Await what waits for so many seconds again and again, and let them pass each time. Return its result.

        A wait may have begun in the middle of such a time, while something else was due.
        """
        task = asyncio.ensure_future(work)
        while not task.done():
            waited_for = asyncio.ensure_future(self._counted(seconds, 1, lambda timer: timer.seconds))
            await asyncio.wait((task, waited_for), return_when=asyncio.FIRST_COMPLETED)
            if waited_for.done():
                await self.advance(min(timer.when() for timer in waited_for.result()) - self.now)
            else:
                waited_for.cancel()
        return task.result()

    async def outlast(self, work: Awaitable[Result], step: float = 1.0) -> Result:
        """Await what ends by itself, or by whatever limit. Half of a real `step` is a whole one by this clock."""
        task = asyncio.ensure_future(work)
        while not (await asyncio.wait([task], timeout=step / 2))[0]:
            await self.advance(step)
        return task.result()

    async def waited_for(self, seconds: float, by: int = 1) -> None:
        """Wait until somebody waits for so many seconds from now on; `by` is how many do so."""
        await self._counted(seconds, by, lambda timer: timer.when() - self.now)

    def forget(self) -> None:
        """Forget all that waits, as a process that is killed does."""
        self._timers.clear()

    async def _counted(self, seconds: float, by: int, of: Callable[[_Timer], float]) -> list[_Timer]:
        try:
            async with asyncio.timeout(SECONDS):
                while len(found := [timer for timer in self._timers if abs(of(timer) - seconds) < 1e-3]) < by:
                    self._set.clear()
                    await self._set.wait()
                return found
        except TimeoutError:
            others = ", ".join(f"{timer.when() - self.now:g} s" for timer in self._timers) or "nothing"
            raise AssertionError(f"less than {by} wait for {seconds:g} s, but for: {others}") from None

    def _forget(self, timer: _Timer) -> None:
        if timer in self._timers:
            self._timers.remove(timer)


class _Timer:
    """Call that `clock` makes at a time, once."""

    def __init__(self, clock: ManualClock, when: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._clock, self._when, self._callback, self._args = clock, when, callback, args
        self.seconds = when - clock.now
        """How long was to be waited when this began."""
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self._clock._forget(self)
        if self._handle is not None:
            self._handle.cancel()

    def fire(self) -> None:
        self._clock._forget(self)
        # As a timer of the event loop, which comes after what was read in the same iteration.
        self._handle = self._loop.call_at(self._loop.time(), self._callback, *self._args)


class _Timeout:
    """`asyncio.timeout` by another clock: at its time, the limit of the event loop's clock is set to the present."""

    def __init__(self, clock: ManualClock, when: float | None) -> None:
        self._clock, self._when = clock, when
        self._limit = asyncio.timeout(None)
        self._timer: _Timer | None = None

    async def __aenter__(self) -> _Timeout:
        await self._limit.__aenter__()
        self.reschedule(self._when)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self._cancel()
        return await self._limit.__aexit__(kind, error, traceback)

    def reschedule(self, when: float | None) -> None:
        self._cancel()
        self._limit.reschedule(None)
        if when is not None:
            self._timer = self._clock.call_at(when, self._expire)

    def expired(self) -> bool:
        return self._limit.expired()

    def _expire(self) -> None:
        self._limit.reschedule(asyncio.get_running_loop().time())

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def _settle() -> None:
    for _ in range(SETTLE_STEPS):
        await asyncio.sleep(0)
