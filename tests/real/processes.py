"""What runs: the processes that a home's CLI started, what they were told, and their ends as events."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

TIMEOUT_SECONDS = 20.0


def processes_of(home: Path, name: str = "", command: str = "") -> list[psutil.Process]:
    """Every living process, orphaned or not, whose HOME this is; those whose name begins so, with this in their command line."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get("HOME") != str(home) or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.name().startswith(name) and command in " ".join(process.cmdline()):
                found.append(process)
    return found


WORKING_ARGUMENTS = {"--include-hook-events", "app-server", "exec", "--acp"}
"""An argument of a CLI that works for a session or a task, and of none that is only asked for its version or login."""


def clis_of(home: Path) -> list[psutil.Process]:
    """The CLIs at work in this home: not what they started, nor those that a gateway asks for their version."""
    all_of = {process.pid: process for process in processes_of(home)}
    found = []
    for process in all_of.values():
        with suppress(psutil.NoSuchProcess):
            if process.ppid() not in all_of and WORKING_ARGUMENTS & set(process.cmdline()):
                found.append(process)
    return found


def cli_of(home: Path) -> psutil.Process:
    """The one CLI at work in this home."""
    found = clis_of(home)
    assert len(found) == 1, f"not one CLI but {found}"
    return found[0]


def arguments(process: psutil.Process) -> Iterator[str]:
    """Every argument of a process and of all below it, as `ps` shows them to everybody."""
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            yield from each.cmdline()


async def wait_for_exit(pid: int) -> None:
    """Until this process has ended, whoever's child it is."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), TIMEOUT_SECONDS)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def wait_until(condition: Callable[[], bool], what: str) -> None:
    """For what gives no event of its own."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_SECONDS:g} s: {what}"
        await asyncio.sleep(0.02)
