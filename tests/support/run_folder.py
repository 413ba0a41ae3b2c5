"""Folder of a test run: everything that a run makes lies in it, and whatever remains of a run is removed.

`begin` makes the folder and holds its FIFO `alive` open for writing. The FIFO has no writer if that process has ended, also by
SIGKILL. Each `begin` removes the folders of runs that have ended, and ends their processes.

Processes belong to a run if their environment says so: the variable VARIABLE, or a HOME or TMPDIR in the folder.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

VARIABLE = "PORTICO_TEST_RUN"
"""Variable with the path of the folder, for all processes of the run."""
PREFIX = "portico-test-"
MEMORY, MEMORY_BYTES = Path("/dev/shm"), 1024**3
"""A file system in memory, and how much of it has to be free for a run to use it."""
ALIVE = "alive"
TEMPORARY = "t"
"""The folder of the temporary folders of tests."""
_BASES = (Path("/tmp"), Path("/var/tmp"))
_MARKS = (VARIABLE, "HOME", "TMPDIR")
_UNFINISHED_SECONDS = 60.0
"""A folder without its FIFO is removed at this age: another process may be making it."""
END_SECONDS = 5.0
"""How long processes have to end themselves."""

_begun: dict[Path, int] = {}
"""The folders that this process has made, with the file descriptors that hold their FIFOs."""
_kept = False


def current() -> Path:
    """Return the folder of the run that this process belongs to. If there is no run, one begins and ends with this process."""
    found = os.environ.get(VARIABLE)
    return Path(found) if found and Path(found).is_dir() else begin()


def begin() -> Path:
    """Begin a run in this process: remove what is left of earlier ones, make the folder, and set TMPDIR to a folder in it."""
    base = _base()
    for each in {base, *_BASES, MEMORY}:
        remove_ended(each)
    folder = make(base)
    memory = folder / "memory"
    if has_room(MEMORY):
        memory.symlink_to(make(MEMORY))
    else:
        _make_folder(memory)
    _make_folder(folder / "tmp")
    os.environ[VARIABLE], os.environ["TMPDIR"] = str(folder), str(folder / "tmp")
    tempfile.tempdir = None
    atexit.register(end)
    return folder


def keep_temporary_folders() -> None:
    """Leave the temporary folders of tests where they are until the next run begins."""
    global _kept
    _kept = True


def end() -> None:
    """End the runs that this process has begun: end their processes, and remove their folders."""
    for folder, alive in list(_begun.items()):
        del _begun[folder]
        os.close(alive)
        remove(folder, keep_temporary=_kept)


def make(base: Path) -> Path:
    """Make a folder that counts as in use until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base)).resolve()
    # The account of a database server needs to enter it.
    folder.chmod(0o711)
    os.mkfifo(folder / f".{ALIVE}", 0o600)
    _begun[folder] = os.open(folder / f".{ALIVE}", os.O_RDWR | os.O_NONBLOCK)
    (folder / f".{ALIVE}").rename(folder / ALIVE)
    return folder


def open_alive() -> int:
    """Open the run's FIFO for reading, for a program that ends when the run does: it reads the end of the file then."""
    reading = os.open(current() / ALIVE, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reading, True)
    return reading


def has_room(memory: Path) -> bool:
    """Whether a file system in memory can be used, and has MEMORY_BYTES free."""
    with suppress(OSError):
        return shutil.disk_usage(memory).free >= MEMORY_BYTES and os.access(memory, os.W_OK | os.X_OK)
    return False


def remove_ended(base: Path, seconds: float = END_SECONDS) -> None:
    """Remove the folders in `base` of this user's runs that have ended, and end their processes."""
    with suppress(OSError):
        for folder in base.glob(f"{PREFIX}*"):
            if folder.lstat().st_uid == os.geteuid() and folder.is_dir() and not folder.is_symlink() and has_ended(folder):
                remove(folder, seconds=seconds)


def has_ended(folder: Path) -> bool:
    """Whether the process that has made the folder has ended."""
    try:
        reading = os.open(folder / ALIVE, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return time.time() - folder.stat().st_mtime > _UNFINISHED_SECONDS
    try:
        return os.read(reading, 1) == b""
    except BlockingIOError:
        return False
    finally:
        os.close(reading)


def remove(folder: Path, *, keep_temporary: bool = False, seconds: float = END_SECONDS) -> None:
    """End the processes of a run and remove its folder. With `keep_temporary` the temporary folders of tests stay in it.

    The processes have so many seconds to end themselves.
    """
    found = list(processes_of(folder))
    for signal in ("terminate", "kill"):
        for process in found:
            with suppress(psutil.Error):
                getattr(process, signal)()
        deadline = time.monotonic() + seconds
        while any(map(is_running, found)) and time.monotonic() < deadline:
            time.sleep(0.01)
    for mounted in psutil.disk_partitions(all=True):
        if Path(mounted.mountpoint).is_relative_to(folder):
            subprocess.run(["umount", "--lazy", mounted.mountpoint])
    kept = (TEMPORARY, ALIVE) if keep_temporary and (folder / TEMPORARY).is_dir() else ()
    # A run that begins now may remove it too.
    with suppress(FileNotFoundError):
        # The FIFO last: without it the folder counts as one that is being made.
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == ALIVE):
            if entry.name not in kept:
                _remove(entry)
        if not kept:
            folder.rmdir()


def _remove(entry: Path) -> None:
    if entry.is_symlink() or not entry.is_dir():
        return entry.unlink(missing_ok=True)
    shutil.rmtree(entry, ignore_errors=True)
    if entry.exists():
        # A test has denied itself a folder.
        subprocess.run(["chmod", "-R", "u+rwx", entry], stderr=subprocess.DEVNULL)
        shutil.rmtree(entry, ignore_errors=True)


def is_running(process: psutil.Process) -> bool:
    """Whether a process has not ended. Processes whose parent has ended stay in the table until process 1 collects them."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def processes_of(folder: Path) -> Iterator[psutil.Process]:
    """Yield the processes of a run and their descendants, except for this process and its parents."""
    seen = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid not in seen and _is_of(process, folder):
                for each in (process, *process.children(recursive=True)):
                    if each.pid not in seen:
                        seen.add(each.pid)
                        yield each


def _is_of(process: psutil.Process, folder: Path) -> bool:
    try:
        environment = process.environ()
    except psutil.AccessDenied:
        # A daemon denies others to read its environment (gateway/security/process_inspection.py).
        return process.uids().real == os.getuid() and any(f"{folder}/" in argument for argument in process.cmdline())
    return any(Path(environment.get(name, "/")).is_relative_to(folder) for name in _MARKS)


def _base() -> Path:
    """Return the folder for the folders of runs: that of temporary files, unless its path does not suit all programs."""
    chosen = Path(os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()).resolve()
    # Paths of sockets have 104 bytes at most, and an address of a database has some of them in a URL.
    suits = len(str(chosen)) <= 40 and re.fullmatch(r"[\w./+-]+", str(chosen), re.ASCII)
    # Another account than root's has to get there.
    if suits and (os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in (chosen, *chosen.parents))):
        return chosen
    return _BASES[0]


def _make_folder(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o711)
