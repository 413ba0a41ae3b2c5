"""Has the system notice that the machine at the other end of an idle TCP connection is gone."""

from __future__ import annotations

import asyncio
import socket

IDLE_SECONDS, INTERVAL_SECONDS, PROBES = 10, 5, 3
"""A connection on which nothing was received for so long is probed, so often, and closed after so many probes: 25 seconds."""
_OPTIONS = [
    # Darwin has the first one under another name.
    (getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", IDLE_SECONDS),
        ("TCP_KEEPALIVE", IDLE_SECONDS),
        ("TCP_KEEPINTVL", INTERVAL_SECONDS),
        ("TCP_KEEPCNT", PROBES),
    )
    if hasattr(socket, name)
]


def keep_alive(transport: asyncio.BaseTransport) -> socket.socket:
    """Have the system probe a TCP connection while it is idle. Returns its socket.

    A peer that only reads nothing is not taken for one that is gone. Linux sends no probes while something is not acknowledged:
    then it gives up when its retransmissions have failed, after about 15 minutes.
    """
    connected: socket.socket = transport.get_extra_info("socket")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _OPTIONS:
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
    return connected
