"""`completed`: work that goes on when its caller is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from gateway.runs.cancellation import completed


async def test_cancellation_of_the_caller_is_raised_after_the_work() -> None:
    go_on, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        done.set()

    caller = asyncio.create_task(completed(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done.is_set()


async def test_result_and_error_are_those_of_the_work() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    async def succeed() -> int:
        return 7

    assert await completed(succeed()) == 7
    with pytest.raises(ValueError, match="broken"):
        await completed(fail())


async def test_work_that_is_cancelled_cancels_its_caller() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await completed(work())
