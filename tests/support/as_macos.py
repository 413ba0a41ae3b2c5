"""Runs a command as if on macOS: without what only Linux has. `python -m tests.support.as_macos serve --config FILE`.

`sys.platform` is "darwin"; the names that Python has on Linux only are removed from the standard library; the system calls of
Linux cannot be found, and /proc does not exist for the code of the gateway. Packages that choose their code by the platform when
they are imported are imported before.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import multiprocessing
import os
import resource
import select
import selectors
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import psycopg

ROOT = Path(__file__).parents[2]
OURS = (str(ROOT / "gateway"), str(ROOT / "drivers"))
ABSENT = {
    os: """O_PATH O_TMPFILE O_NOATIME O_DIRECT O_RSYNC P_PIDFD P_ALL P_PID P_PGID WEXITED WSTOPPED WNOWAIT waitid waitid_result
        memfd_create eventfd pidfd_open pipe2 posix_fadvise posix_fallocate sched_getaffinity sched_setaffinity splice
        copy_file_range getrandom setresuid setresgid getresuid getresgid listxattr getxattr setxattr removexattr fdatasync""",
    socket: """SO_PEERCRED SO_PASSCRED SO_BINDTODEVICE SO_MARK SO_DOMAIN SO_PROTOCOL AF_NETLINK AF_PACKET AF_ALG AF_VSOCK
        SOCK_CLOEXEC SOCK_NONBLOCK MSG_NOSIGNAL MSG_CMSG_CLOEXEC MSG_ERRQUEUE TCP_USER_TIMEOUT TCP_CORK TCP_QUICKACK
        TCP_DEFER_ACCEPT""",
    select: "epoll EPOLLIN EPOLLOUT EPOLLHUP EPOLLERR EPOLLET EPOLLRDHUP",
    signal: "sigtimedwait sigwaitinfo pidfd_send_signal SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT SIGPOLL SIGCLD",
    resource: "prlimit RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING",
    fcntl: """F_SETPIPE_SZ F_GETPIPE_SZ F_ADD_SEALS F_GET_SEALS F_NOTIFY F_SETLEASE F_GETLEASE F_OFD_SETLK F_OFD_SETLKW
        F_OFD_GETLK""",
}
"""Names that only Linux has, by their modules, according to the annotations of the standard library (typeshed)."""
IMPORTED_BEFORE = (asyncio, multiprocessing, subprocess, urllib.request, psutil, psycopg)


class _NoLinuxCalls(ctypes.CDLL):
    """A C library without the functions of Linux."""

    def __getattr__(self, name: str) -> Any:
        if name in ("prctl", "syscall", "unshare", "setns", "inotify_init", "memfd_create"):
            raise AttributeError(f"{name} is a function of Linux")
        return super().__getattr__(name)


def remove_linux() -> None:
    """Remove from this process what macOS does not have."""
    assert IMPORTED_BEFORE
    # By default asyncio uses epoll.
    asyncio.set_event_loop_policy(_SelectPolicy())
    for module, names in ABSENT.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    if sys.version_info >= (3, 13):
        os.process_cpu_count = os.cpu_count
    ctypes.CDLL = _NoLinuxCalls  # type: ignore[misc]
    is_folder = os.path.isdir
    os.path.isdir = lambda path: not str(path).startswith("/proc") and is_folder(path)  # type: ignore[assignment]
    sys.addaudithook(_hide_proc)
    sys.platform = "darwin"


class _SelectPolicy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(selectors.PollSelector())


def _hide_proc(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("open", "os.listdir", "os.scandir") or not str(arguments[0]).startswith(("/proc", "/sys/")):
        return
    frame = sys._getframe(1)
    # psutil reads /proc itself, in the place of the calls that it makes on macOS.
    while frame is not None and not frame.f_code.co_filename.startswith(psutil.__path__[0]):
        if frame.f_code.co_filename.startswith(OURS):
            raise FileNotFoundError(2, "No such file or directory", arguments[0])
        frame = frame.f_back  # type: ignore[assignment]


if __name__ == "__main__":
    remove_linux()
    from gateway.cli.main import main

    main()
