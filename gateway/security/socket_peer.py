"""The user of the process at the other end of a Unix socket, as the kernel reports it."""

from __future__ import annotations

import os
import socket
import struct
import sys


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
