"""An event loop without threads and without real time, so that a test is the same each time that it runs.

`settle` runs all that can run, and returns when everybody waits: for the test, or for the clock that the test turns.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Selector(selectors.DefaultSelector):
    """Never waits: calls `idle` where the loop would wait."""

    idle: Callable[[], None]

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and (timeout is None or timeout > 0):
            self.idle()
        return found


class StillLoop(asyncio.SelectorEventLoop):
    """Event loop whose time stands still, and whose executors are all one `InlineExecutor`."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.idle = self.stop
        super().__init__(selector)
        self.threads = InlineExecutor(self)
        # It is called for failures that nobody has awaited, whenever the garbage collector finds them.
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return 0.0

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        chosen = executor if isinstance(executor, InlineExecutor) else self.threads
        return asyncio.wrap_future(chosen.submit(function, *arguments), loop=self)

    def settle(self) -> None:
        """Run until nothing can run any more."""
        self.run_forever()

    def done(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine, which waits for nobody. Raises AssertionError if it does."""
        task = self.create_task(work)
        self.settle()
        assert task.done(), f"{task.get_coro()!r} waits for ever"
        return task.result()

    def cancel_all(self) -> None:
        """Cancel all tasks, and those that they begin instead."""
        for _ in range(20):
            for task in asyncio.all_tasks(self):
                task.cancel()
            self.settle()


class InlineExecutor(Executor):
    """Calls functions in the event loop, in order, instead of in threads. While `held`, it calls none."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._jobs = loop, deque[tuple[Future[Any], Callable[[], Any]]]()
        self.held = False

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs.append((future, lambda: function(*arguments, **named)))
        self._loop.call_soon(self._call)
        return future

    def _call(self) -> None:
        if self.held or not self._jobs:
            return
        future, job = self._jobs.popleft()
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(job())
        except BaseException as error:
            future.set_exception(error)

    def call_one(self) -> None:
        """Call the next function although the others are held."""
        held, self.held = self.held, False
        self._call()
        self.held = held

    def release(self) -> None:
        """Call what was held, and hold nothing any more."""
        self.held = False
        for _ in self._jobs:
            self._loop.call_soon(self._call)

    def drop(self) -> None:
        """Forget what was held, as a process that is killed does."""
        self._jobs.clear()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing is to be ended."""


async def in_line(access: Callable[..., Result], *arguments: object, daemon: bool = False, limited: bool = True) -> Result:
    """`drivers.runtime.file_threads.in_thread` without a thread."""
    return access(*arguments)
