"""Finds and ends every process that an agent has started, also orphans and those in sessions of their own.

An agent's process has a marker in its environment, which its children inherit. By the marker a child is found that was orphaned,
or that has a session and process group of its own (as the shells of all the real CLIs do).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable

import psutil

MARKER = "PORTICO_AGENT_ID"


def started_at(pid: int) -> float | None:
    """The start time of a process (seconds since the epoch), None if there is none; with the pid it is an identity."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def tree(pid: int) -> list[psutil.Process]:
    """A process and its descendants, children first."""
    try:
        root = psutil.Process(pid)
        return [*reversed(root.children(recursive=True)), root]
    except psutil.Error:
        return []


def marked(prefix: str) -> list[psutil.Process]:
    """The processes of this user whose marker starts with `prefix`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARKER, "").startswith(prefix):
                found.append(process)
    return found


def family(prefix: str) -> set[psutil.Process]:
    """The marked processes and their descendants: one that was started with an environment of its own has no marker."""
    return {process for root in marked(prefix) for process in tree(root.pid)}


def signal_all(processes: Iterable[psutil.Process], *, kill: bool) -> None:
    """SIGTERM, or with `kill` SIGKILL, to each that still is the process it was."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill() if kill else process.terminate()


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; zombies do not."""
    alive = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


def child_runs(pid: int) -> bool:
    """Whether a child of this process runs; a zombie does not. It is left for its parent's own wait."""
    if hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
        try:
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def end_marked(prefix: str, grace: float, known: Iterable[psutil.Process] = ()) -> int:
    """End every process with the marker, its descendants and the `known`: SIGTERM, up to `grace` seconds, SIGKILL.

    Blocks. Returns the number found.
    """
    found = living({*known, *family(prefix)})
    signal_all(found, kill=False)
    _wait_gone(found, grace)
    # Processes that were started in between are found by searching again.
    for _ in range(10):
        left = living({*found, *marked(prefix)})
        if not left:
            break
        signal_all(left, kill=True)
        _wait_gone(left, 1.0)
    return len(found)


def end_tree(pid: int, created: float, grace: float) -> int:
    """End one process, known by pid and start time, with its descendants. The number found; 0 if the pid is another's."""
    now = started_at(pid)
    if now is None or abs(now - created) > 1.0:
        return 0
    found = tree(pid)
    signal_all(found, kill=False)
    _wait_gone(found, grace)
    signal_all(living(found), kill=True)
    return len(found)


def _wait_gone(processes: list[psutil.Process], seconds: float) -> None:
    # psutil.wait_procs would reap children that asyncio waits for, and polls other processes in any case.
    deadline = time.monotonic() + seconds
    while living(processes) and time.monotonic() < deadline:
        time.sleep(0.01)
