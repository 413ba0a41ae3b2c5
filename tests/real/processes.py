"""The processes of a CLI, found by their home folder; their arguments; and waiting for their exit."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

TIMEOUT_SECONDS = 20.0


def processes_of(home: Path, name: str = "", command: str = "") -> list[psutil.Process]:
    """Every running process with this HOME, whose executable's name starts with `name` and whose command line contains `command`.

    The name is not the process's own: a shim of pyenv is a shell script called `python3`, which becomes `pyenv` and then Python.
    """
    found = []
    for pid in psutil.pids():
        with suppress(psutil.Error, OSError):
            # Not by `process_iter`, whose objects keep the executable that a process had when it was asked for first.
            process = psutil.Process(pid)
            if process.environ().get("HOME") != str(home) or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if Path(process.exe()).name.startswith(name) and command in " ".join(process.cmdline()):
                found.append(process)
    return found


WORKING_ARGUMENTS = {"--include-hook-events", "app-server", "exec", "--acp"}
"""Arguments of a CLI that runs a session or a task, and not of one that is probed for its version or login."""


PROBE = ("--setting-sources", "")
"""Arguments of a claude that is probed, with those of a session."""


def clis_of(home: Path) -> list[psutil.Process]:
    """The CLIs with this home that run a session or a task, without their children and without probes."""
    all_of = {process.pid: process for process in processes_of(home)}
    found = []
    for process in all_of.values():
        with suppress(psutil.NoSuchProcess):
            if process.ppid() in all_of or not WORKING_ARGUMENTS & set(process.cmdline()):
                continue
            if PROBE not in itertools.pairwise(process.cmdline()):
                found.append(process)
    return found


def cli_of(home: Path) -> psutil.Process:
    """The only CLI with this home that runs a session or a task."""
    found = clis_of(home)
    assert len(found) == 1, f"not one CLI but {found}"
    return found[0]


def arguments(process: psutil.Process) -> Iterator[str]:
    """Every argument of a process and its descendants, as `ps` shows them to all users, without those that have ended."""
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            yield from each.cmdline()


async def wait_for_exit(pid: int) -> None:
    """Wait until this process has ended, whether or not it is a child of this one."""
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


async def running_process(home: Path, name: str) -> psutil.Process:
    """Wait until a process with this HOME runs an executable whose name starts with `name`, and return the first one."""
    found: list[psutil.Process] = []

    def look() -> bool:
        found[:] = processes_of(home, name)
        return bool(found)

    await wait_until(look, f"a process of {name} runs")
    return found[0]


async def tear_down(home: Path, daemons: Sequence[Daemon]) -> None:
    """Stop these daemons. Kill the processes that still use this home folder, and fail if there are any."""
    for daemon in daemons:
        if daemon.process is not None and daemon.process.returncode is None:
            await daemon.stop()
    left = processes_of(home)
    for process in left:
        process.kill()
        await wait_for_exit(process.pid)
    assert not left, f"left behind: {left}"
