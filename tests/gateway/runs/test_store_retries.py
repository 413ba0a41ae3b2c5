"""Writes that a run depends on, whose run ends before they do."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import Any

import pytest

from drivers.runtime.clock import SYSTEM_CLOCK
from gateway.runs.store_retries import retried


@pytest.mark.parametrize("ended", [False, True], ids=["under way", "ended"])
async def test_a_write_that_fails_after_its_run_was_cancelled_is_logged(caplog: pytest.LogCaptureFixture, ended: bool) -> None:
    unretrieved = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unretrieved.append(context))
    begun, go = asyncio.Event(), asyncio.Event()

    async def write() -> None:
        begun.set()
        await go.wait()
        raise OSError("the disk is full")

    run = asyncio.create_task(retried(write, asyncio.Event(), SYSTEM_CLOCK))
    await begun.wait()
    if ended:
        go.set()
        # The write ends in the iteration of the event loop in which the run is cancelled.
        await asyncio.sleep(0)
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run
    assert run.cancelled()
    go.set()
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert unretrieved == []
    assert caplog.messages == ["a write to the store failed: the disk is full"]
