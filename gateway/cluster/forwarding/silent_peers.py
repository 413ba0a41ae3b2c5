"""Connections to other nodes whose machine is gone without a word."""

from __future__ import annotations

import socket

SILENCE = 25_000
"""Milliseconds for the acknowledgement of what was sent, or for a peer that reads nothing to read on."""
IDLE_SECONDS, INTERVAL_SECONDS, PROBES = 10, 5, 3
"""A connection on which nothing was received for so long is probed, so often, and closed after so many probes: 25 seconds."""
_KEEP_ALIVE = [
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


def notice_silence(connection: socket.socket) -> None:
    """Have the system close a TCP connection once the machine at its other end is gone, at the latest after 25 seconds.

    Where the system has TCP_USER_TIMEOUT, a node that reads nothing for so long counts as gone too.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    # Linux sends no probes while it waits for the acknowledgement of what was sent.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE)
