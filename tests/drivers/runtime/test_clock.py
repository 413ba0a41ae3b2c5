"""The clock of the machine, and the clock that tests turn, behave alike."""

from __future__ import annotations

import asyncio

import pytest

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from tests.support.manual_clock import ManualClock


@pytest.fixture(params=["of the machine", "turned by hand"])
def either(request: pytest.FixtureRequest, clock: ManualClock) -> Clock:
    return SYSTEM_CLOCK if request.param == "of the machine" else clock


async def let_pass(clock: Clock, seconds: float) -> None:
    """Wait for the clock of the machine, or turn the other one."""
    if isinstance(clock, ManualClock):
        # What has just been started begins to wait.
        await clock.advance(0)
        await clock.advance(seconds)
    else:
        await asyncio.sleep(seconds + 0.05)


async def test_calls_are_made_in_the_order_of_their_times(either: Clock) -> None:
    called: list[str] = []
    either.call_later(0.02, called.append, "second")
    either.call_later(0.01, called.append, "first")
    either.call_later(0.01, called.append, "never").cancel()
    await let_pass(either, 0.03)
    assert called == ["first", "second"]


async def test_a_limit_that_passes_raises_and_one_that_is_moved_or_left_does_not(either: Clock) -> None:
    async def limited(when: float | None) -> None:
        async with either.timeout(0.01) as limit:
            limit.reschedule(when)
            await asyncio.Event().wait()

    late = asyncio.create_task(limited(either.monotonic() + 0.01))
    moved = asyncio.create_task(limited(None))
    async with either.timeout(0.01):
        pass
    await let_pass(either, 0.02)
    with pytest.raises(TimeoutError):
        await late
    assert not moved.done()
    moved.cancel()
    await asyncio.wait([moved])
    assert moved.cancelled(), "that it is cancelled from outside is no passed limit"


async def test_a_wait_ends_at_its_limit_and_cancels_nothing(either: Clock) -> None:
    done, never = asyncio.create_task(asyncio.sleep(0)), asyncio.create_task(asyncio.Event().wait())
    waiting = asyncio.create_task(either.wait([done, never], 0.01))
    await let_pass(either, 0.02)
    assert await waiting == ({done}, {never})
    assert await either.wait([done, never], 0.01, asyncio.FIRST_COMPLETED) == ({done}, {never})
    never.cancel()


async def test_the_event_loop_has_the_clock_of_the_machine() -> None:
    assert abs(SYSTEM_CLOCK.monotonic() - asyncio.get_running_loop().time()) < 10


async def test_a_clock_that_is_turned_by_hand_says_who_waits_for_another_time(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.manual_clock.SECONDS", 0.01)
    sleeping = asyncio.create_task(clock.sleep(5))
    with pytest.raises(AssertionError, match="less than 1 wait for 6 s, but for: 5 s"):
        await clock.expire(6)
    await clock.expire(5)
    await sleeping


async def test_a_wait_that_begins_while_something_else_is_due_is_expired_too(clock: ManualClock) -> None:
    begun = asyncio.Event()
    clock.call_later(0.5, begun.set)

    async def work() -> int:
        await begun.wait()
        await clock.sleep(1.0)
        return 1

    first = asyncio.create_task(clock.sleep(1.0))
    assert await clock.expire_until(work(), 1.0) == 1
    await first
