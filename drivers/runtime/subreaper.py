"""Makes this process the parent of orphaned descendants (a child subreaper), and reaps them. On Linux; elsewhere it does nothing.

Which agent a process belongs to, and when it is ended, is decided in drivers/runtime/process_tree.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable

import psutil

from drivers.runtime.process_tree import described, living, set_adoption, signal_all, wait_gone

log = logging.getLogger(__name__)

PR_SET_CHILD_SUBREAPER = 36
REAP_SECONDS = 5.0
"""Seconds between the exit of a child and the search for orphans that have exited, and between two searches."""
KILL_SECONDS = 0.2
"""Seconds that orphans have to disappear when they are killed at the end."""


@contextlib.asynccontextmanager
async def adopted_orphans(every: float = REAP_SECONDS) -> AsyncIterator[None]:
    """Adopt orphans, reap those that exit, and at the end kill those that are left: no agent runs any more then.

    For a process whose only children are agents. Orphans of other programs that it had as children before, such as those that a
    shell started before its `exec`, are not killed.
    """
    if sys.platform != "linux":
        yield
        return
    had_children = bool(_children())
    _set_subreaper(True)
    set_adoption(on=True, only_agents=not had_children)
    child_exited = _notify_of_exits()
    reaping = asyncio.create_task(_reap_repeatedly(every, child_exited))
    try:
        yield
    finally:
        reaping.cancel()
        if child_exited is not None:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        if not had_children:
            await _kill_orphans()
        set_adoption(on=False)
        _set_subreaper(False)


def reap(processes: Iterable[psutil.Process]) -> None:
    """Reap those that are children of this process and have exited. Not for processes that the event loop waits for."""
    for process in processes:
        with contextlib.suppress(ChildProcessError):
            if _has_exited(process):
                os.waitpid(process.pid, os.WNOHANG)


def _has_exited(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE and process.is_running()
    except (psutil.Error, OSError):
        return False


def _notify_of_exits() -> asyncio.Event | None:
    """Returns an event that is set at each exit of a child; None outside of the main thread, which has the signals."""
    child_exited = asyncio.Event()
    # Some may have exited before.
    child_exited.set()
    try:
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, child_exited.set)
    except (ValueError, RuntimeError):
        return None
    return child_exited


async def _reap_repeatedly(every: float, child_exited: asyncio.Event | None) -> None:
    seen = set[psutil.Process]()
    while True:
        if child_exited is not None:
            await child_exited.wait()
            child_exited.clear()
        # Many exits are one search.
        await asyncio.sleep(every)
        exited = {child for child in await asyncio.to_thread(_children, exited=True) if _has_exited(child)}
        # asyncio and subprocess reap their own children at once. What has not been reaped since the last time is an orphan.
        reap(exited & seen)
        seen = exited
        if seen and child_exited is not None:
            child_exited.set()


async def _kill_orphans() -> None:
    killed = set[psutil.Process]()
    # Those of the killed ones come next.
    while orphans := set(living(_orphans())) - killed:
        log.warning("killing processes that agents have left behind: %s", described(orphans))
        signal_all(orphans, kill=True)
        await wait_gone(orphans, KILL_SECONDS)
        reap(orphans)
        killed |= orphans


def _orphans() -> list[psutil.Process]:
    """Children in another session than this process. Agents have sessions of their own; a process cannot join an older one."""
    found = []
    for child in _children():
        with contextlib.suppress(OSError):
            if os.getsid(child.pid) != os.getsid(0):
                found.append(child)
    return found


def _children(*, exited: bool = False) -> list[psutil.Process]:
    """The children of this process. With `exited`, only if one of them has exited. Does not reap."""
    if sys.platform != "linux":
        return []
    try:
        # Searching takes milliseconds, this system call microseconds.
        one = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    if exited and one is None:
        return []
    try:
        return psutil.Process().children()
    except OSError as error:
        log.warning("orphans cannot be searched for: %s", error)
        return []


def _set_subreaper(on: bool) -> None:
    import ctypes  # 5 ms

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) != 0:
        log.warning("this process cannot adopt orphans: %s", os.strerror(ctypes.get_errno()))
