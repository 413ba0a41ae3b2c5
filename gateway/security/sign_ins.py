"""Sign-ins of the console's page: each stands for the API key that it was made by, until it ends.

A browser has two secrets of a sign-in. One is a cookie, which no script can read. But all ports of a host share their cookies, so
that a server of somebody else on this machine gets it too. The other one, the token, is kept for the page's own origin.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.store.credentials import SignInRow

UNUSED_SECONDS = 30 * 24 * 3600.0
"""A sign-in ends so long after its last use."""
MAX_SIGN_INS = 200
"""Sign-ins of keys of one name. At one more, that of them whose last use is the longest ago ends."""
CODE_SECONDS = 60.0
"""A one-time code can be used for so long."""
MAX_CODES = 100
"""Codes of keys of one name that wait to be used. At one more, the oldest of them cannot be used any more."""


@dataclass(frozen=True, slots=True)
class KeyIdentity:
    """A valid API key: its name, None for a default key, and its SHA-256 in hexadecimal digits."""

    name: str | None
    digest: str


@dataclass(frozen=True, slots=True)
class SignInSecrets:
    """The secrets of one sign-in: the values of its cookie and of its header."""

    cookie: str
    token: str


@dataclass(frozen=True, slots=True)
class OfferedSignIn:
    """Header and cookies that a request of the console's page has instead of an Authorization header.

    A server on another port of the host can set a cookie of the same name for a longer path, which browsers send first.
    """

    cookies: tuple[str, ...]
    token: str

    def secrets(self) -> Iterator[SignInSecrets]:
        """Yield the secrets with each of the cookies."""
        return (SignInSecrets(cookie, self.token) for cookie in self.cookies)


def is_made_by(found: SignInRow, identity: KeyIdentity, cookie: str) -> bool:
    """Whether a sign-in with this cookie was made by a key."""
    return identity.name == found.name and hmac.compare_digest(found.key, compared_key(identity, cookie))


def compared_key(identity: KeyIdentity, cookie: str) -> str:
    """Return what is stored of the key that a sign-in with this cookie is made by."""
    # The row of a named key has its hash. That of a default key, which a person may have chosen, could be guessed from it.
    if identity.name is not None:
        return identity.digest
    return hmac.new(cookie.encode(), identity.digest.encode(), hashlib.sha256).hexdigest()


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a key or another secret in hexadecimal digits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def masked(digest: str, code: str) -> str:
    """Return the digest of a key as it is stored with a one-time code, or the digest of what is stored.

    Only with the code one is got from the other: a default key that a person has chosen could be guessed from its digest.
    """
    mask = hashlib.sha256(b"portico sign-in code:" + code.encode()).digest()
    return bytes(a ^ b for a, b in zip(bytes.fromhex(digest), mask, strict=True)).hex()
