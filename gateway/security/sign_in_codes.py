"""One-time codes for sign-ins."""

from __future__ import annotations

import hashlib
import secrets

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.security.sign_ins import KeyIdentity

CODE_SECONDS = 60.0
MAX_CODES = 100
"""Codes of keys of one name that wait to be used. At one more, the oldest of them cannot be used any more."""


class SignInCodes:
    """Codes that are used once, within CODE_SECONDS. They are in memory only."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._codes: dict[bytes, tuple[KeyIdentity, float]] = {}

    def make(self, identity: KeyIdentity) -> str:
        """Return a new code for a sign-in of this key."""
        now = self._clock.monotonic()
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
        return found[0] if found is not None and self._clock.monotonic() <= found[1] else None


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()
