"""Runs file accesses in a thread each, so that those that a file system does not answer block no others."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from drivers.runtime.clock import SYSTEM_CLOCK, Clock

Result = TypeVar("Result")

MAX_THREADS = 256
"""File accesses that may be under way at the same time, blocked ones included."""

ANSWER_SECONDS = 5.0
"""Seconds for a question to the file system, or to another program of this machine."""

_running = set[threading.Thread]()


class TooManyAccesses(OSError):
    """MAX_THREADS file accesses are under way: most of them, or all, are blocked by a file system that does not answer."""

    def __init__(self) -> None:
        super().__init__(errno.EAGAIN, f"{MAX_THREADS} file accesses are under way or blocked already")


async def in_thread(access: Callable[..., Result], *args: object, daemon: bool = False, limited: bool = True) -> Result:
    """Call a function in a new thread and return its result. Raises what it raises, and TooManyAccesses.

    Cancelling does not end the thread. The end of the process waits for it, unless it is a `daemon` thread. A call that is not
    `limited` is made although all threads are blocked.
    """
    if limited and len(_running) >= MAX_THREADS:
        raise TooManyAccesses
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def set_result(result: Result | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = access(*args)
        except BaseException as raised:
            error = raised
        _running.discard(thread)
        # The loop may be closed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(set_result, result, error)

    thread = threading.Thread(target=run, name="file-access", daemon=daemon)
    _running.add(thread)
    try:
        thread.start()
    except BaseException:
        _running.discard(thread)
        raise
    return await done


async def in_thread_or_undone(access: Callable[[], Result], undo: Callable[[Result], None]) -> Result:
    """Call a function as `in_thread` does. If the caller is cancelled, `undo` gets the result once the thread has ended."""
    calling = asyncio.ensure_future(in_thread(access))
    try:
        return await asyncio.shield(calling)
    except asyncio.CancelledError:
        calling.add_done_callback(lambda done: None if done.cancelled() or done.exception() else undo(done.result()))
        raise


async def bounded(call: Callable[[], Result], seconds: float = ANSWER_SECONDS, clock: Clock = SYSTEM_CLOCK) -> Result:
    """Call a function in a thread and return its result.

    Raises what it raises, TooManyAccesses, and TimeoutError after so many seconds. The thread is left then, and the end of the
    process does not wait for it.
    """
    async with clock.timeout(seconds):
        return await in_thread(call, daemon=True)


def wait_for_threads() -> None:
    """Block until all file accesses that are under way have ended, but for those in daemon threads."""
    for thread in list(_running):
        if not thread.daemon:
            thread.join()
