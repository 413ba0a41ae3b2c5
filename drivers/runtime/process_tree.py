"""Finds and ends every process that an agent has started, also orphans and those in sessions of their own.

Each process that the runtime starts has a marker, `INSTANCE.AGENT`. Its descendants inherit it twice: in their environment, and
on Linux as a tag, a number in a resource limit, which a program that clears its environment keeps
(docs/decisions/process-trees.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import resource
import secrets
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import psutil

from drivers.runtime.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

MARKER = "PORTICO_AGENT_ID"
"""The environment variable with the marker."""
RLIMIT_LOCKS = 10
"""The resource limit whose soft value is the tag. Kernels since 2.4.25 do not use it: `RLIMIT_LOCKS` in getrlimit(2)."""
KILL_SECONDS = 1.0
"""Seconds that processes have to disappear after SIGKILL."""
SAME_START_SECONDS = 1.0
"""By how much two measurements of a process's start time may differ: it is computed from the time of the system's start."""
SEARCH_AGAIN_SECONDS = 0.2
"""Seconds after SIGKILL until processes that were started in between are searched for."""
SEARCH_TIMEOUT = 1.0
"""Seconds that a search for processes may take. It takes milliseconds, unless the system does not answer."""
SEARCH_THREADS = 2
"""Threads for these searches."""

_UNTAGGED = resource.getrlimit(RLIMIT_LOCKS) if sys.platform == "linux" else (0, 0)
_numbers = itertools.count(secrets.randbits(32))
# Not the event loop's default threads: file accesses use those, and may block all of them.
_searches = ThreadPoolExecutor(SEARCH_THREADS, thread_name_prefix="process-search")
_blocked = set[Future[set[psutil.Process]]]()
"""The searches that have not ended within SEARCH_TIMEOUT, and still block a thread."""


def new_marker(instance: str, kind: str = "") -> str:
    """A marker for a process of this instance, `INSTANCE.AGENT` or `INSTANCE.KIND.AGENT`. Its last eight digits differ from those
    of all other markers of this process."""
    return f"{instance}.{f'{kind}.' if kind else ''}{secrets.token_hex(12)}{next(_numbers) & 0xFFFFFFFF:08x}"


def tag_next_child(marker: str) -> None:
    """Set the tag of a marker as this process's own, until the event loop runs its next callbacks.

    A process that is started before that inherits the tag from its first instruction on. `tag` afterwards makes sure of it.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(RLIMIT_LOCKS, (_tag(marker), _UNTAGGED[1]))
            asyncio.get_running_loop().call_soon(resource.setrlimit, RLIMIT_LOCKS, _UNTAGGED)


def tag(pid: int, marker: str) -> None:
    """Set the tag of a running process, if it has another one."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError):
            soft, hard = resource.prlimit(pid, RLIMIT_LOCKS)
            if soft != _tag(marker):
                resource.prlimit(pid, RLIMIT_LOCKS, (_tag(marker), hard))


def _tag(marker: str) -> int:
    """A number of 63 bits: 31 for the instance, 32 for the process."""
    return _instance_tag(marker.partition(".")[0]) << 32 | int(marker[-8:], 16)


def _instance_tag(instance: str) -> int:
    # Not 0, and so that no tag is the value of a limit that is not set.
    return zlib.crc32(instance.encode()) & 0x7FFFFFFF or 1


def process_of(pid: int, created: float | None = None) -> psutil.Process | None:
    """The process with this pid at this moment, None if there is none.

    Parameters:
        created: The start time in seconds since the epoch. A process with another one only has the same pid.
    """
    try:
        process = psutil.Process(pid)
        return process if created is None or abs(process.create_time() - created) <= SAME_START_SECONDS else None
    except (psutil.Error, OSError):
        return None


def family(of: str, roots: Iterable[psutil.Process] = ()) -> set[psutil.Process]:
    """The processes with a marker, those of the sessions that the `roots` lead, the roots, and the descendants of all of them.

    Blocks for about 20 µs a process of the machine. Zombies and this process are not included.

    Parameters:
        of: A marker, or an instance for all of its markers.
        roots: Processes that belong to it, marker or not.
    """
    # This process has the tag of a process that is starting (`tag_next_child`), and the marker if an agent has started it.
    rows = [row for row in (_linux_rows(of) if sys.platform == "linux" else _portable_rows(of)) if row.pid != os.getpid()]
    pids = {row.pid for row in rows}
    running = {root.pid for root in roots if root.is_running()}
    # Sessions outlive their leaders. A pid that another process has now is not the session's any more.
    sessions = running | {root.pid for root in roots if root.pid not in pids}
    children = defaultdict[int, list[int]](list)
    for row in rows:
        children[row.parent].append(row.pid)
    found = set[int]()
    left = [row.pid for row in rows if row.marked or row.session in sessions or row.pid in running]
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children[pid]
    return {process for process in map(process_of, found) if process is not None}


@dataclass(slots=True)
class _Row:
    """A process of the machine."""

    pid: int
    parent: int
    session: int
    marked: bool


def _linux_rows(of: str) -> Iterator[_Row]:
    """All processes but zombies and the kernel's. psutil takes four times as long."""
    one = "." in of
    variable = f"\0{MARKER}={of if one else f'{of}.'}".encode()
    number = _tag(of) if one else _instance_tag(of)

    def is_marked(pid: int, state: bytes) -> bool:
        if (_tag_of(pid) if one else _tag_of(pid) >> 32) == number:
            return True
        # Reading the environment of a process in uninterruptible sleep may block.
        return state != b"D" and variable in b"\0" + _read(f"/proc/{pid}/environ")

    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = _read(f"/proc/{name}/stat").rpartition(b")")[2].split(None, 5)
            # It may have ended.
            if len(stat) > 5 and stat[0] not in (b"Z", b"X") and stat[1] != b"2":
                yield _Row(int(name), int(stat[1]), int(stat[3]), is_marked(int(name), stat[0]))


def _tag_of(pid: int) -> int:
    """The tag of a process, 0 without one."""
    if sys.platform != "linux":
        return 0
    try:
        return max(resource.prlimit(pid, RLIMIT_LOCKS)[0], 0)
    except PermissionError:
        # Another user's. Reading the file takes 20 times as long.
        text = _read(f"/proc/{pid}/limits").partition(b"Max file locks")[2].split(None, 1)[:1]
        return int(text[0]) if text and text != [b"unlimited"] else 0
    except OSError:
        return 0


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


def _portable_rows(of: str) -> Iterator[_Row]:
    prefix = of if "." in of else f"{of}."
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            parent, session, marked = process.ppid(), os.getsid(process.pid), False
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            # Other users' processes do not show it.
            with contextlib.suppress(psutil.Error, OSError):
                marked = process.environ().get(MARKER, "").startswith(prefix)
            yield _Row(process.pid, parent, session, marked)


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


async def end_family(
    of: str,
    grace: float,
    roots: Iterable[psutil.Process] = (),
    known: Iterable[psutil.Process] = (),
    clock: Clock = SYSTEM_CLOCK,
) -> Ended:
    """End a family and the `known` processes: SIGTERM, up to `grace` seconds, SIGKILL, up to KILL_SECONDS.

    A process is left if it is in uninterruptible sleep, or belongs to a user whose processes this one may not signal.
    """
    roots = tuple(roots)
    found = {*living(known), *await find_family(of, roots)}
    if not found:
        return Ended(found, [])
    signal_all(found, kill=False)
    await wait_gone(found, grace, clock)
    until = clock.monotonic() + KILL_SECONDS
    while left := living(found | await find_family(of, roots)):
        found.update(left)
        if clock.monotonic() >= until:
            break
        signal_all(left, kill=True)
        await wait_gone(left, min(SEARCH_AGAIN_SECONDS, until - clock.monotonic()), clock)
    return Ended(found, left)


async def find_family(of: str, roots: Iterable[psutil.Process] = ()) -> set[psutil.Process]:
    """`family` in a thread, for SEARCH_TIMEOUT seconds at most.

    If the search fails, as without free file descriptors, or takes longer, that is logged and the roots are returned. It is not
    begun while earlier searches block all threads.
    """
    roots = tuple(roots)
    problem = "earlier searches are blocked"
    if len(_blocked) < SEARCH_THREADS:
        try:
            search = _searches.submit(family, of, roots)
            return await asyncio.wait_for(asyncio.wrap_future(search), SEARCH_TIMEOUT)
        except TimeoutError:
            problem = f"the search takes longer than {SEARCH_TIMEOUT:g} s"
            if not search.done():
                _blocked.add(search)
                search.add_done_callback(_blocked.discard)
        except (OSError, RuntimeError) as error:
            problem = str(error)
    log.warning("the processes of an agent cannot be searched for, but for the first: %s", problem)
    return set(roots)


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
