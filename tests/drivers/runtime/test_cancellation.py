"""Awaits that a cancellation does not cut short."""

from __future__ import annotations

import asyncio

import pytest

from drivers.runtime.cancellation import despite_cancellation


async def test_work_goes_on_and_the_caller_is_cancelled_after_it() -> None:
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), False

    async def work() -> str:
        nonlocal ended
        begun.set()
        await may_end.wait()
        ended = True
        return "result"

    caller = asyncio.create_task(despite_cancellation(work()))
    await begun.wait()
    caller.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended
    assert await despite_cancellation(work()) == "result"


async def test_error_of_the_work_is_raised() -> None:
    async def work() -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        await despite_cancellation(work())
