"""Unix sockets: their addresses, and the process at the other end, as the kernel reports it."""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from drivers.runtime.confined_files import SEARCH, has_descriptor_paths

MAX_PATH = 100
"""Bytes of a socket's address: Linux accepts 107, macOS 103."""


def peer_process(connection: socket.socket) -> int | None:
    """Return the id of the process at the other end, on Linux; None on other systems."""
    if sys.platform != "linux":
        return None
    pid: int = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def connect(connection: socket.socket, path: str) -> None:
    """Connect to a Unix socket, whose path may be longer than an address. Raises OSError."""
    with short_address(path) as address:
        connection.connect(address)


@contextmanager
def short_address(path: str) -> Iterator[str]:
    """A path of at most MAX_PATH bytes to the same file: by a descriptor of its folder. Raises OSError if there is none."""
    if len(os.fsencode(path)) <= MAX_PATH:
        yield path
        return
    if not has_descriptor_paths():
        raise OSError(errno.ENAMETOOLONG, f"the path of a socket has more than {MAX_PATH} bytes; choose another data directory")
    folder = os.open(os.path.dirname(path), SEARCH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def is_same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end is one of this user. False where the kernel does not report it."""
    try:
        if sys.platform == "linux":
            _, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        else:
            # LOCAL_PEERCRED of macOS and FreeBSD: struct xucred begins with its version and the user.
            _, uid = struct.unpack("II", connection.getsockopt(0, 1, 76)[:8])
    except OSError:
        return False
    return bool(uid == os.geteuid())
