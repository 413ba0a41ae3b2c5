"""Extends pytest-timeout, by which a test fails that takes longer than `timeout` of pyproject.toml: prints what the tasks of the
test's loop wait for, raises the failure again if it was swallowed, and limits the teardown of a failed test too.

A thread cannot be interrupted: if a test waits for one, the alarm is handled when the main thread runs again.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

REPEAT_SECONDS = 10.0
"""Seconds until the failure is raised once more: the first may end a task that is not awaited."""

_SETTINGS = pytest.StashKey[Any]()


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, Any, Any]:
    """Print what the tasks wait for before the failure is raised."""
    item.stash[_SETTINGS] = settings
    found = yield
    fail = signal.getsignal(signal.SIGALRM)
    if settings.method == "signal" and callable(fail):
        signal.signal(signal.SIGALRM, _report_and_fail(fail))
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, REPEAT_SECONDS)
    return found


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Suspend the timer: to format a traceback takes longer than AGAIN on a busy machine, and a failure there ends the worker."""
    left, again = signal.setitimer(signal.ITIMER_REAL, 0) if _SETTINGS in item.stash else (0.0, 0.0)
    try:
        return (yield)
    finally:
        if left:
            signal.setitimer(signal.ITIMER_REAL, left, again)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Set a timer for the teardown: pytest-timeout 2.4.0 cancels the timer of a test that has failed."""
    if _SETTINGS in item.stash:
        item.config.hook.pytest_timeout_set_timer(item=item, settings=item.stash[_SETTINGS])
    return (yield)


def _report_and_fail(fail: Callable[[int, Any], Any]) -> Callable[[int, Any], Any]:
    def handler(number: int, frame: Any) -> None:
        sys.stderr.write("".join(f"{line}\n" for line in awaited_by_tasks()))
        fail(number, frame)

    return handler


def awaited_by_tasks() -> Iterator[str]:
    """Yield the stack of each task of the running loop, from the task's coroutine down to what it waits for."""
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return
    for task in tasks:
        yield f"~~~ {task.get_name()} waits ~~~"
        waits: Any = task.get_coro()
        while waits is not None:
            frame = next((f for kind in ("cr", "gi", "ag") if (f := getattr(waits, f"{kind}_frame", None)) is not None), None)
            if frame is None:
                yield f"  for {waits!r}"
                break
            yield f"  {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
            waits = next((w for kind in ("cr", "gi", "ag") if (w := _awaited(waits, kind)) is not None), None)


def _awaited(waits: Any, kind: str) -> Any:
    return getattr(waits, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)
