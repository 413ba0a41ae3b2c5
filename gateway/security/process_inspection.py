"""Denies other processes of the same user to read this process's environment and memory, which hold API keys. On Linux only."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Mapping

log = logging.getLogger(__name__)

PR_SET_DUMPABLE = 4
ALLOWED_BY = "PORTICO_ALLOW_INSPECTION"
"""The variable that is `1` where a debugger or profiler is to read the process."""


def deny_process_inspection(environ: Mapping[str, str] = os.environ) -> None:
    """Make this process not dumpable: `/proc/PID/environ`, `mem`, `fd` and `maps`, ptrace(2) and core dumps need root.

    Without effect where the variable ALLOWED_BY is `1`. Processes that it starts are dumpable again from execve(2) on, which
    sets the attribute (PR_SET_DUMPABLE in prctl(2)).
    """
    if sys.platform != "linux" or environ.get(ALLOWED_BY) == "1":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        log.warning("other processes of this user can read the memory of this one: %s", os.strerror(ctypes.get_errno()))
