"""Sign-ins of the console's page: each stands for the API key that it was made by, until it ends.

A browser has two secrets of a sign-in. One is a cookie, which no script can read. But all ports of a host share their cookies, so
that a server of somebody else on this machine gets it too. The other one, the token, is kept for the page's own origin.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.private_files import FILE_MODE, private_directory

log = logging.getLogger(__name__)

UNUSED_SECONDS = 30 * 24 * 3600.0
"""A sign-in ends so long after its last use."""
USED_AT_INTERVAL = 3600.0
"""The last use is recorded at most once in so many seconds."""
MAX_SIGN_INS = 200
"""Sign-ins of keys of one name. At one more, that of them whose last use is the longest ago ends."""


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


@dataclass(frozen=True, slots=True)
class SignIn:
    """A sign-in. `key` is the digest of a named key; for a default key it can only be compared, with the cookie's value.

    Times are seconds since the epoch.
    """

    name: str | None
    key: str
    token: str
    used_at: float

    @property
    def expires_at(self) -> float:
        return self.used_at + UNUSED_SECONDS

    def is_by(self, identity: KeyIdentity, cookie: str) -> bool:
        """Whether it was made by this key."""
        return identity.name == self.name and hmac.compare_digest(self.key, compared_key(identity, cookie))


class SignIns:
    """The sign-ins of a data directory, which one daemon uses. Only hashes are stored, each sign-in in a file of mode 0600.

    `clock` returns seconds since the epoch.
    """

    def __init__(self, data_dir: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self._folder, self._clock = data_dir / "sign-ins", clock
        self._known: dict[str, SignIn] | None = None

    def begin(self, identity: KeyIdentity) -> SignInSecrets:
        """Store a new sign-in of a key, and return its secrets. Raises OSError if it cannot be stored."""
        known, now = self._all(), self._clock.time()
        private_directory(self._folder.parent)
        private_directory(self._folder)
        for digest in _surplus(known, identity.name, now):
            self._remove(digest)
        made, found = new_sign_in(identity, now)
        # Written to a temporary file of mode 0600 and renamed: a daemon that is killed meanwhile leaves no half of it.
        descriptor, temporary = tempfile.mkstemp(dir=self._folder, prefix=".")
        os.fchmod(descriptor, FILE_MODE)
        with open(descriptor, "w") as file:
            json.dump({"name": found.name, "key": found.key, "token": found.token}, file)
        os.replace(temporary, self._folder / digest_of(made.cookie))
        known[digest_of(made.cookie)] = found
        return made

    def find(self, given: SignInSecrets) -> SignIn | None:
        """Return the sign-in with these secrets, and record its use; None if there is none, or it has ended."""
        known, now = self._all(), self._clock.time()
        # A look-up by hash leaks nothing by its timing: only the value itself gives a chosen hash.
        digest = digest_of(given.cookie)
        found = known.get(digest)
        if found is None or not hmac.compare_digest(found.token, digest_of(given.token)):
            return None
        if now > found.expires_at:
            self._remove(digest)
            return None
        if now - found.used_at > USED_AT_INTERVAL:
            found = known[digest] = SignIn(found.name, found.key, found.token, now)
            with suppress(OSError):
                os.utime(self._folder / digest, (now, now))
        return found

    def end(self, given: SignInSecrets) -> None:
        """End the sign-in with these secrets, if there is one. Raises OSError if it cannot be deleted."""
        if self.find(given) is not None:
            self._remove(digest_of(given.cookie))

    def _remove(self, digest: str) -> None:
        self._all().pop(digest, None)
        (self._folder / digest).unlink(missing_ok=True)

    def _all(self) -> dict[str, SignIn]:
        if self._known is None:
            self._known = {file.name: found for file in self._folder.glob("[0-9a-f]*") if (found := _read(file)) is not None}
        return self._known


def new_sign_in(identity: KeyIdentity, now: float) -> tuple[SignInSecrets, SignIn]:
    """Return a new sign-in of a key with its secrets."""
    made = SignInSecrets(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
    return made, SignIn(identity.name, compared_key(identity, made.cookie), digest_of(made.token), now)


def digest_of(text: str) -> str:
    """Return the SHA-256 of a secret in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of_key(key: str) -> str:
    """Return the SHA-256 of an API key, as in KeyIdentity."""
    return digest_of(key)


def _surplus(known: dict[str, SignIn], name: str | None, now: float) -> list[str]:
    """The sign-ins that have ended, and those of this name that make place for one more."""
    # A copy: requests in other threads begin and end sign-ins meanwhile.
    by_use = sorted(known.copy().items(), key=lambda item: item[1].used_at, reverse=True)
    ended = [digest for digest, found in by_use if now > found.expires_at]
    own = [digest for digest, found in by_use if found.name == name and now <= found.expires_at]
    return ended + own[MAX_SIGN_INS - 1 :]


def compared_key(identity: KeyIdentity, cookie: str) -> str:
    """Return what a sign-in stores of the key that it is made by: `SignIn.key`."""
    # A file of a named key has its hash as its name. That of a default key, which a person may have chosen, could be guessed from
    # a plain hash.
    if identity.name is not None:
        return identity.digest
    return hmac.new(cookie.encode(), identity.digest.encode(), hashlib.sha256).hexdigest()


def _read(file: Path) -> SignIn | None:
    try:
        with open(file) as opened:
            data, used_at = json.load(opened), os.fstat(opened.fileno()).st_mtime
        name = data["name"]
        return SignIn(None if name is None else str(name), str(data["key"]), str(data["token"]), used_at)
    except (OSError, ValueError, TypeError, KeyError):
        # Without the error's text, which may quote the file.
        log.warning("the sign-in %s is damaged or cannot be read, and has ended", file)
        return None
