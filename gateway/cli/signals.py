"""The signals that end a command which starts agents: the command ends its agents first."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from gateway.server.end_signals import end_signals

Result = TypeVar("Result")


class EndSignals:
    """Runs the coroutine of a command until it returns, or until SIGINT, SIGTERM or SIGHUP."""

    def __init__(self) -> None:
        self.on_interrupt: Callable[[], object] | None = None
        """What SIGINT calls instead of ending the command."""
        self._number: int | None = None

    def run(self, main: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine as `asyncio.run` does. The first signal cancels it, so that it ends what it has started.

        Raises SystemExit with 128 + the number of the signal, as shells report it, once the coroutine has ended.
        """
        before = dict[signal.Signals, Any]()
        try:
            return asyncio.run(self._run(main, before))
        except BaseException:
            # It may have another error by then, such as that of a terminal that is gone.
            if self._number is None:
                raise
            raise SystemExit(128 + self._number) from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def _run(self, main: Coroutine[Any, Any, Result], before: dict[signal.Signals, Any]) -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        # Not by the event loop's `add_signal_handler`: while a write to standard output blocks, that calls nothing.
        handler = partial(self._on_signal, loop, task)
        for number in end_signals():
            before[number] = signal.signal(number, handler)
        return await main

    def _on_signal(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.on_interrupt is not None:
            loop.call_soon_threadsafe(self.on_interrupt)
        elif self._number is None:
            # Once: `timeout` sends two signals, and the second one must not cut the end short.
            self._number = number
            _discard_blocked_output()
            # The loop is closed if the coroutine has just ended.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)


def _discard_blocked_output() -> None:
    """Redirect standard output and error to nowhere where they take nothing more: a pipe that nobody reads, or a terminal that is
    gone. A write that blocks is repeated after the handler of the signal, and the command would not end before it."""
    for stream in (1, 2):
        poll = select.poll()
        poll.register(stream, select.POLLOUT)
        with suppress(OSError):
            if poll.poll(0) != [(stream, select.POLLOUT)]:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream)
                os.close(null)
