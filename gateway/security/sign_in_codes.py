"""One-time codes for sign-ins, and a limit of tries with wrong keys."""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import time
from collections import deque
from collections.abc import Callable

from gateway.errors import TooMany
from gateway.security.sign_ins import KeyIdentity

CODE_SECONDS = 60.0
MAX_CODES = 100
"""Codes of keys of one name that wait to be used. At one more, the oldest of them cannot be used any more."""
WRONG_TRIES = 10
TRIES_SECONDS = 60.0
MAX_ADDRESSES = 1000
"""Addresses whose wrong tries are remembered."""

Clock = Callable[[], float]


class SignInCodes:
    """Codes that are used once, within CODE_SECONDS. They are in memory only. `clock` returns seconds."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._codes: dict[bytes, tuple[KeyIdentity, float]] = {}

    def make(self, identity: KeyIdentity) -> str:
        """Return a new code for a sign-in of this key."""
        now = self._clock()
        self._codes = {digest: found for digest, found in self._codes.items() if now <= found[1]}
        own = [digest for digest, (known, _) in self._codes.items() if known.name == identity.name]
        for digest in own[: max(0, len(own) - MAX_CODES + 1)]:
            del self._codes[digest]
        code = secrets.token_urlsafe(24)
        self._codes[_digest(code)] = identity, now + CODE_SECONDS
        return code

    def use(self, code: str) -> KeyIdentity | None:
        """Return the key of a code, which cannot be used again; None for a code that was used, is too old or never existed."""
        # By its hash, so that the time of the look-up says nothing about the codes.
        found = self._codes.pop(_digest(code), None)
        return found[0] if found is not None and self._clock() <= found[1] else None


class WrongTries:
    """Counts wrong tries by the address of the client: WRONG_TRIES in TRIES_SECONDS. `clock` returns seconds."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._by_client: dict[str, deque[float]] = {}

    def check(self, address: str) -> None:
        """Raise TooMany for a client that has to wait."""
        tries = self._by_client.get(_client(address))
        if tries is None or len(tries) < WRONG_TRIES:
            return
        wait = tries[0] + TRIES_SECONDS - self._clock()
        if wait > 0:
            made = f"{WRONG_TRIES} wrong keys within a minute"
            raise TooMany(f"{made}: wait {wait:.0f} seconds, then sign in again, or use the link of `portico open`")

    def add(self, address: str) -> None:
        """Count a wrong try."""
        client = _client(address)
        tries = self._by_client.pop(client, deque(maxlen=WRONG_TRIES))
        tries.append(self._clock())
        self._by_client[client] = tries
        if len(self._by_client) > MAX_ADDRESSES:
            del self._by_client[next(iter(self._by_client))]


def _client(address: str) -> str:
    """What one client has: an address of IPv4, a network of 64 bits of IPv6."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 6 and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()
