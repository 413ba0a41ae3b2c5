"""Finds and ends every process that an agent has started, also orphans and those in sessions of their own.

A process belongs to an agent if it descends from the process that the gateway has started, or from an orphan of that one: a
process whose parent has exited (docs/decisions/process-trees.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import psutil

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.file_threads import in_thread

log = logging.getLogger(__name__)

MARKER = "PORTICO_AGENT_ID"
"""The environment variable of an agent's processes. It says which agent an orphan belongs to."""
KILL_SECONDS = 1.0
"""Seconds that processes have to disappear after SIGKILL."""
SAME_START_SECONDS = 1.0
"""By how much two measurements of a process's start time may differ: it is computed from the time of the system's start."""
SEARCH_SECONDS = 10.0
"""Seconds after which a search is late. It takes milliseconds, and on a busy machine a second or two."""
SEARCH_AGAIN_SECONDS = 0.2
"""Seconds after SIGKILL until processes that were started in between are searched for, and after a search that failed."""
TICKS = os.sysconf("SC_CLK_TCK")
"""The clock ticks in a second, in which Linux gives start times."""
KERNEL_THREAD = 0x200000
"""The flag of the kernel's own processes in /proc/PID/stat."""
SCANS = 10
"""How often the processes are listed again because a parent exited meanwhile."""
SLEEP_SECONDS = 1.0
"""Seconds that are waited until the environment of an orphan can be read."""


@dataclass(frozen=True, slots=True)
class Root:
    """A process that a gateway has started: its marker, its pid, and its start time by the clock of `_Row.started`.

    `confined` is whether it is kept from files of its user.
    """

    marker: str
    pid: int
    started: float
    confined: bool = False

    @classmethod
    def stored(cls, marker: str, pid: int, created: float) -> Root:
        """Return the root with a start time in seconds since the epoch."""
        return cls(marker, pid, created - psutil.boot_time() if sys.platform == "linux" else created)

    @classmethod
    def running(cls, marker: str, pid: int, *, confined: bool = False) -> Root:
        """Return the root of a child of this process."""
        return cls(marker, pid, _started(pid), confined)


@dataclass(slots=True)
class _Adoption:
    """Whether orphans of agents become children of this process, and whether all its children in other sessions are theirs."""

    on: bool = False
    only_agents: bool = False


_adoption = _Adoption()
live_roots = dict[Root, bool]()
"""The processes that this process has started and not ended yet, and whether they are being ended."""
starting = set[str]()
"""The markers of those that it is starting."""


def set_adoption(*, on: bool, only_agents: bool = False) -> None:
    """State whether this process is a child subreaper. With `only_agents` it has no child of its own in another session."""
    _adoption.on, _adoption.only_agents = on, on and only_agents


def new_marker(instance: str) -> str:
    """Return a marker for a process of this instance, `INSTANCE.AGENT`."""
    return f"{instance}.{secrets.token_hex(16)}"


def process_of(pid: int) -> psutil.Process | None:
    """The process with this pid at this moment, None if there is none."""
    try:
        return psutil.Process(pid)
    except (psutil.Error, OSError):
        return None


def family(root: Root) -> set[psutil.Process]:
    """Return the processes of an agent of this process: the root, its descendants, and its orphans with their descendants.

    An orphan without a marker belongs to the agents that are older than it. It is returned if no other one of them runs.
    Blocks for about 15 µs a process of the machine. Zombies and this process are not included.
    """
    rows = _rows()
    reapers = {os.getpid()} if _adoption.on else _reapers(rows)
    found = _owned(rows, [root], reapers, {root.pid})
    # A process that is being started is not known by its pid yet.
    if _adoption.only_agents and not starting:
        found += _ownerless(rows, {**live_roots, root: True})
    return _with_descendants(rows, found)


def is_confined(pid: int) -> bool:
    """Whether a process may be one of a confined agent of this process. It may be if it has ended by now."""
    roots = {root.pid: root.confined for root in tuple(live_roots)}
    if not any(roots.values()):
        return False
    own = os.getpid()
    while pid not in roots and pid > 1 and pid != own:
        found = process_of(pid)
        try:
            parent = 0 if found is None else found.ppid()
            # An orphan: which agent it belongs to is not worth a search.
            if found is None or (parent == own and os.getsid(pid) != os.getsid(0)):
                return True
        except (psutil.Error, OSError):
            return True
        pid = parent
    return roots.get(pid, False)


def left_behind(roots: Collection[Root]) -> set[psutil.Process]:
    """Return the processes of agents whose daemon was killed: the roots, their descendants, and orphans with their markers."""
    if not roots:
        return set()
    rows = _rows()
    return _with_descendants(rows, _owned(rows, roots, _reapers(rows), ()))


@dataclass(slots=True)
class _Row:
    """A process of the machine."""

    pid: int
    parent: int
    session: int
    started: float
    """Seconds since the start of the system on Linux, which the clock does not change; elsewhere since the epoch."""


def _owned(rows: Collection[_Row], roots: Collection[Root], reapers: Collection[int], sessions: Collection[int]) -> list[_Row]:
    """Return the roots, and the orphans with their markers, of their sessions and of these sessions."""
    by_pid = {row.pid: row for row in rows}
    started = {root.marker: root.started for root in roots}
    found = [row for root in roots if (row := by_pid.get(root.pid)) and abs(row.started - root.started) <= SAME_START_SECONDS]
    # A session outlives its leader. If another process has the leader's pid now, there is no such session any more.
    sessions = {row.pid for row in found} | (set(sessions) - by_pid.keys())
    for row in rows:
        if row.parent in reapers and (row.session in sessions or row.started >= _since(row, started)):
            found.append(row)
    return found


def _since(orphan: _Row, started: Mapping[str, float]) -> float:
    """Return the start of the agent whose marker an orphan has: what was started before only has the same variable."""
    return started.get(_marker_of(orphan.pid), math.inf) - SAME_START_SECONDS


def _ownerless(rows: Collection[_Row], agents: Mapping[Root, bool]) -> Iterator[_Row]:
    """Yield the adopted orphans that are older than all agents, except for agents that are being ended.

    Helpers of this process are in its own session.
    """
    own, pids = os.getsid(0), {agent.pid for agent in agents}
    oldest = min((agent.started for agent, ending in agents.items() if not ending), default=math.inf)
    for row in rows:
        if row.parent == os.getpid() and row.session != own and row.pid not in pids and row.started < oldest:
            yield row


def _with_descendants(rows: Collection[_Row], found: Collection[_Row]) -> set[psutil.Process]:
    children = defaultdict[int, list[_Row]](list)
    for row in rows:
        children[row.parent].append(row)
    family, left = dict[int, _Row](), list(found)
    while left:
        row = left.pop()
        if row.pid not in family:
            family[row.pid] = row
            left += children[row.pid]
    processes = ((row, process_of(row.pid)) for row in family.values())
    # Another process may have the pid by now.
    return {process for row, process in processes if process is not None and _started(row.pid) == row.started}


def _reapers(rows: Collection[_Row]) -> set[int]:
    """The processes that can have become the parent of orphans of a process like this one: process 1, and subreapers above it.

    A shell, whose other children are no orphans, is in the session of this process.
    """
    own, found, by_pid = os.getsid(0), {1}, {row.pid: row for row in rows}
    parent = by_pid.pop(os.getppid(), None)
    while parent is not None and parent.pid != 1:
        if parent.session != own:
            found.add(parent.pid)
        parent = by_pid.pop(parent.parent, None)
    return found


def _rows() -> list[_Row]:
    """All processes but this one, zombies and the kernel's. Raises OSError if no more files can be open."""
    without_parent = set[int]()
    for _ in range(SCANS):
        rows = list(_linux_rows() if sys.platform == "linux" else _portable_rows())
        pids = {0, *(row.pid for row in rows)}
        # If a parent exits while the processes are listed, its child is neither a descendant nor an orphan in this list.
        # The parents of others are not shown: they are outside of a container, or another user's.
        before, without_parent = without_parent, {row.pid for row in rows if row.parent not in pids}
        if without_parent <= before:
            break
    return [row for row in rows if row.pid != os.getpid()]


def _linux_rows() -> Iterator[_Row]:
    # psutil takes four times as long.
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = _stat(int(name))
            # It may have ended.
            if len(stat) > 19 and stat[0] not in (b"Z", b"X") and not int(stat[6]) & KERNEL_THREAD:
                yield _Row(int(name), int(stat[1]), int(stat[3]), int(stat[19]) / TICKS)


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on; none if there is no such process."""
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _started(pid: int) -> float:
    """The start time of a process by the clock of `_Row.started`; 0 if it has ended."""
    with contextlib.suppress(psutil.Error, OSError, IndexError):
        return int(_stat(pid)[19]) / TICKS if sys.platform == "linux" else psutil.Process(pid).create_time()
    return 0.0


def _portable_rows() -> Iterator[_Row]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield _Row(process.pid, process.ppid(), os.getsid(process.pid), process.create_time())


def _marker_of(pid: int) -> str:
    """The marker in the environment of a process; empty without one, and for another user's process."""
    if sys.platform != "linux":
        with contextlib.suppress(psutil.Error, OSError):
            return psutil.Process(pid).environ().get(MARKER, "")
        return ""
    path, name = f"/proc/{pid}/environ", f"{MARKER}=".encode()
    until = time.monotonic() + SLEEP_SECONDS
    while os.access(path, os.R_OK) and _has_no_environment_yet(stat := _stat(pid)):
        # Linux shows the addresses in `stat` only to processes that may read the environment: capabilities can forbid it.
        if stat[0] != b"D" and _is_forbidden(path):
            return ""
        if time.monotonic() > until:
            log.warning("process %d is in uninterruptible sleep: whether it belongs to an agent is not known", pid)
            return ""
        time.sleep(0.01)
    variables = _read(path).split(b"\0")
    return next((os.fsdecode(each[len(name) :]) for each in variables if each.startswith(name)), "")


def _has_no_environment_yet(stat: Sequence[bytes]) -> bool:
    """Whether a process is in uninterruptible sleep, where reading its environment may block, or in the middle of execve(2)."""
    return len(stat) > 48 and (stat[0] == b"D" or stat[48] == b"0")


def _is_forbidden(path: str) -> bool:
    """Whether a file may not be opened. Raises OSError if no more files can be open."""
    try:
        os.close(os.open(path, os.O_RDONLY))
    except PermissionError:
        return True
    except (FileNotFoundError, ProcessLookupError):
        # It ends: its descendants may have to end yet, as in a process namespace. It is waited for.
        pass
    return False


def _read(path: str) -> bytes:
    """The content of a file, empty if it is not there or may not be read. Raises OSError if no more files can be open."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return b""
    try:
        content = b""
        while part := os.read(file, 1 << 16):
            content += part
        return content
    except OSError:
        return b""
    finally:
        os.close(file)


def signal_all(processes: Iterable[psutil.Process], *, kill: bool) -> None:
    """SIGTERM, or with `kill` SIGKILL, to each that still is the process it was, and that this user may signal."""
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            process.kill() if kill else process.terminate()


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; zombies do not."""
    return [process for process in processes if _lives(process)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
    except OSError:
        # Not known: no more files can be open.
        return True


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


@dataclass(frozen=True, slots=True)
class Ended:
    """The processes that were found, and those of them that SIGKILL did not end within KILL_SECONDS."""

    found: set[psutil.Process]
    left: list[psutil.Process]


async def end_processes(
    search: Callable[[], set[psutil.Process]],
    grace: float,
    late: Callable[[], None],
    known: Iterable[psutil.Process] = (),
    clock: Clock = SYSTEM_CLOCK,
) -> Ended:
    """End the processes that `search` finds, and the `known` ones: SIGTERM, up to `grace` seconds, SIGKILL.

    Searches until it finds none; `late` is as in `searched`. A process is left if it is there KILL_SECONDS after SIGKILL: it is
    in uninterruptible sleep, or belongs to a user whose processes this one may not signal.
    """
    found = {*living(known), *await searched(search, late, clock)}
    if not found:
        return Ended(found, [])
    signal_all(found, kill=False)
    await wait_gone(found, grace, clock)
    killed = dict[psutil.Process, float]()
    while left := living(found | await searched(search, late, clock)):
        found.update(left)
        now = clock.monotonic()
        if all(now - killed.get(process, now) >= KILL_SECONDS for process in left):
            break
        signal_all(left, kill=True)
        killed = {process: killed.get(process, now) for process in left}
        await wait_gone(left, SEARCH_AGAIN_SECONDS, clock)
    return Ended(found, left)


async def searched(
    search: Callable[[], set[psutil.Process]], late: Callable[[], None], clock: Clock = SYSTEM_CLOCK
) -> set[psutil.Process]:
    """Run a search in a thread of its own, and again if it fails, as without free file descriptors.

    `late` is called once the search has failed, or has taken SEARCH_SECONDS. The search goes on.
    """
    timer = clock.call_later(SEARCH_SECONDS, late)
    try:
        while True:
            try:
                return await in_thread(search, daemon=True, limited=False)
            except (OSError, RuntimeError) as error:
                log.warning("the processes of an agent cannot be searched for; trying again: %s", error)
            late()
            await asyncio.sleep(SEARCH_AGAIN_SECONDS)
    finally:
        timer.cancel()


async def memory_and_cpu(processes: Iterable[psutil.Process], seconds: float) -> tuple[int, float]:
    """The resident memory of processes in bytes, and what they take of one processor, in percent, over so many seconds.

    Processes that end meanwhile count until then.
    """
    measured = tuple(processes)
    # The first call begins the measurement of each.
    _cpu_percent(measured)
    await asyncio.sleep(seconds)
    memory = 0
    for process in measured:
        with contextlib.suppress(psutil.Error, OSError):
            memory += process.memory_info().rss
    return memory, _cpu_percent(measured)


def _cpu_percent(processes: Iterable[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            total += process.cpu_percent(None)
    return total


async def wait_gone(processes: Iterable[psutil.Process], seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
    """Wait until none of them runs, for so many seconds at most."""
    # psutil.wait_procs would reap children that asyncio waits for, and polls other processes in any case. The pauses are those of
    # the machine, whatever `clock` says: processes need them to end.
    with contextlib.suppress(TimeoutError):
        async with clock.timeout(seconds):
            pause = 0.001
            while processes := living(processes):
                await asyncio.sleep(pause)
                pause = min(2 * pause, 0.01)


def described(processes: Iterable[psutil.Process]) -> str:
    """The pid, name, state and user of each, for the log."""
    return ", ".join(map(_described, processes))


def _described(process: psutil.Process) -> str:
    try:
        found = process.as_dict(["name", "status", "username"])
    except (psutil.Error, OSError):
        return str(process.pid)
    return f"{process.pid} ({found['name']}, {found['status']}, user {found['username']})"
