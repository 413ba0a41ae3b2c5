"""Calls that may block for ever: accesses of a file system or a server that does not answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")

ANSWER_SECONDS = 5.0
"""Seconds for each question to the file system, or to the daemon."""


async def bounded(call: Callable[[], Result], seconds: float = ANSWER_SECONDS) -> Result:
    """Call a function in a thread and return its result. Raises what it raises, and TimeoutError after so many seconds.

    The thread is left then. It is a daemon thread, which the end of the process does not wait for.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def set_result(result: Result | None, error: BaseException | None) -> None:
        if not done.done():
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:
            error = raised
        # The loop may be closed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(set_result, result, error)

    threading.Thread(target=run, name="diagnosis", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await done
