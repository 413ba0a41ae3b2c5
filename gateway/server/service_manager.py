"""Tells the service manager that has started the daemon about its state: sd_notify(3) of systemd, a datagram to a Unix socket."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)

SOCKET = "NOTIFY_SOCKET"
"""The variable with the socket's path; one that begins with `@` is a name in the abstract namespace."""
EXTRA_STOP_SECONDS = 5.0
"""Seconds that the daemon may need more to exit than it announces, on a busy machine."""


def announce_ready(url: str, environ: Mapping[str, str] = os.environ) -> None:
    """Announce that the daemon accepts connections, and the address, which `systemctl status` displays."""
    _notify("READY=1", f"STATUS=listening on {url}", environ=environ)


def announce_stop(seconds: float, environ: Mapping[str, str] = os.environ) -> None:
    """Announce that the daemon ends, and how long that takes at most: otherwise the manager kills it after its own limit."""
    microseconds = round((seconds + EXTRA_STOP_SECONDS) * 1e6)
    _notify("STOPPING=1", "STATUS=ending the agents", f"EXTEND_TIMEOUT_USEC={microseconds}", environ=environ)


def _notify(*lines: str, environ: Mapping[str, str]) -> None:
    address = environ.get(SOCKET, "")
    if not address.startswith(("/", "@")):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
            # The event loop must not wait for a manager that does not read.
            opened.setblocking(False)
            opened.sendto("\n".join(lines).encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
    except OSError as error:
        log.warning("the service manager cannot be notified at %s: %s", address, error)
