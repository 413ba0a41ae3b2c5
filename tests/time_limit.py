"""A test that takes longer than `timeout` of pyproject.toml fails, by pytest-timeout. Here is what that leaves open: what the
tasks of the test's loop wait for is printed, the failure comes again if it was swallowed, and the end of a failed test has a
limit too.

A thread cannot be interrupted: where a test waits for one, the alarm is taken when the main thread runs again.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

AGAIN = 10.0
"""Seconds until the failure is raised once more: the first may end a task that nobody waits for."""

_SETTINGS = pytest.StashKey[Any]()


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, Any, Any]:
    """Say what is waited for before the failure is raised."""
    item.stash[_SETTINGS] = settings
    found = yield
    fail = signal.getsignal(signal.SIGALRM)
    if settings.method == "signal" and callable(fail):
        signal.signal(signal.SIGALRM, _told(fail))
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, AGAIN)
    return found


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Give the end a limit of its own: the timer of a test that has failed is taken back (pytest-timeout 2.4.0)."""
    if _SETTINGS in item.stash:
        item.config.hook.pytest_timeout_set_timer(item=item, settings=item.stash[_SETTINGS])
    return (yield)


def _told(fail: Callable[[int, Any], Any]) -> Callable[[int, Any], Any]:
    def reported(number: int, frame: Any) -> None:
        sys.stderr.write("".join(f"{line}\n" for line in waiting()))
        fail(number, frame)

    return reported


def waiting() -> Iterator[str]:
    """Where each task of the loop that runs stands, from the task's own coroutine down to what it waits for."""
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return
    for task in tasks:
        yield f"~~~ {task.get_name()} waits ~~~"
        waits: Any = task.get_coro()
        while waits is not None:
            place = next((f for kind in ("cr", "gi", "ag") if (f := getattr(waits, f"{kind}_frame", None)) is not None), None)
            if place is None:
                yield f"  for {waits!r}"
                break
            yield f"  {place.f_code.co_filename}:{place.f_lineno} in {place.f_code.co_qualname}"
            waits = next((w for kind in ("cr", "gi", "ag") if (w := _awaited(waits, kind)) is not None), None)


def _awaited(waits: Any, kind: str) -> Any:
    return getattr(waits, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)
