"""The limit of wrong API keys of one client. It is for wrong keys only: a right one is never refused."""

from __future__ import annotations

import ipaddress
import logging
import math
from collections import deque

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.errors import TooMany

log = logging.getLogger(__name__)

MAX_WRONG_KEYS = 10
SECONDS = 60.0
"""So many wrong keys of a client in so many seconds are a 401 each, and further ones a 429."""
MAX_CLIENTS = 1000
"""Clients whose wrong keys are remembered."""


class WrongKeys:
    """Counts the wrong keys of each client, by its address."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._by_client: dict[str, deque[float]] = {}

    def count(self, address: str) -> None:
        """Count a wrong key. Raises TooMany, and does not count it, if the client has used up its tries."""
        client, now = _client(address), self._clock.monotonic()
        times = self._by_client.pop(client, deque(maxlen=MAX_WRONG_KEYS))
        self._by_client[client] = times
        if len(self._by_client) > MAX_CLIENTS:
            del self._by_client[next(iter(self._by_client))]
        if len(times) == MAX_WRONG_KEYS and (wait := times[0] + SECONDS - now) > 0:
            seconds = math.ceil(wait)
            sent = f"{MAX_WRONG_KEYS} wrong API keys within a minute"
            raise TooMany(f"{sent}: wait {seconds} seconds, or send a right one; `portico key` prints it", seconds)
        times.append(now)
        if len(times) == MAX_WRONG_KEYS and now - times[0] < SECONDS:
            log.warning("%s has sent %d wrong API keys within a minute", client or "a client without an address", MAX_WRONG_KEYS)


def _client(address: str) -> str:
    """Return what one client has: an address of IPv4, a network of 64 bits of IPv6. Empty for what is no address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if parsed.version == 6 and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)
