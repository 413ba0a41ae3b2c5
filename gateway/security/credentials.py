"""Credentials: the named keys, sign-ins and one-time codes of a gateway, in its data directory and in memory.

Those that all nodes of a cluster share are in gateway/nodes/shared_credentials.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from drivers.runtime.file_threads import in_thread
from gateway.errors import StoreUnavailable
from gateway.security.api_keys import NamedKey, NamedKeys
from gateway.security.sign_in_codes import SignInCodes
from gateway.security.sign_ins import KeyIdentity, SignIn, SignIns, SignInSecrets


class KnownCredentials(Protocol):
    """What is asked at each request, without waiting."""

    def name_of(self, key: str) -> str | None:
        """Return the name of a valid key and record its use; None for any other key."""

    def has(self, name: str, digest: str) -> bool:
        """Whether there is a key of this name and of this SHA-256 in hexadecimal digits."""

    def find(self, given: SignInSecrets) -> SignIn | None:
        """Return the sign-in with these secrets, and record its use; None if there is none, or it has ended."""


class Credentials(KnownCredentials, Protocol):
    """What changes them. Each method raises StoreUnavailable if that cannot be stored."""

    async def keys(self) -> list[NamedKey]:
        """Return all keys, the oldest first."""

    async def add_key(self, name: str) -> str:
        """Create a key and return it; only its hash is stored. Raises ConfigError if the name is in use or cannot be one."""

    async def remove_key(self, name: str) -> None:
        """Revoke a key. Raises ConfigError if no key has this name."""

    async def begin_sign_in(self, identity: KeyIdentity) -> SignInSecrets:
        """Store a new sign-in of a key, and return its secrets."""

    async def end_sign_in(self, given: SignInSecrets) -> None:
        """End the sign-in with these secrets, if there is one."""

    async def make_code(self, identity: KeyIdentity) -> str:
        """Return a new code for a sign-in of this key."""

    async def use_code(self, code: str) -> KeyIdentity | None:
        """Return the key of a code, which cannot be used again; None for a code that was used, is too old or never existed."""


class LocalCredentials:
    """The credentials of one daemon: keys and sign-ins are files of its data directory, codes are in memory."""

    def __init__(self, data_dir: Path) -> None:
        self._keys, self._sign_ins, self._codes = NamedKeys(data_dir), SignIns(data_dir), SignInCodes()

    def name_of(self, key: str) -> str | None:
        return self._keys.name_of(key)

    def has(self, name: str, digest: str) -> bool:
        return self._keys.has(name, digest)

    def find(self, given: SignInSecrets) -> SignIn | None:
        return self._sign_ins.find(given)

    async def keys(self) -> list[NamedKey]:
        return await in_thread(self._keys.all)

    async def add_key(self, name: str) -> str:
        return await in_thread(self._keys.add, name)

    async def remove_key(self, name: str) -> None:
        await in_thread(self._keys.remove, name)

    async def begin_sign_in(self, identity: KeyIdentity) -> SignInSecrets:
        try:
            return await in_thread(self._sign_ins.begin, identity)
        except OSError as error:
            raise StoreUnavailable(f"the sign-in cannot be stored in the data directory: {error.strerror}") from None

    async def end_sign_in(self, given: SignInSecrets) -> None:
        await in_thread(self._sign_ins.end, given)

    async def make_code(self, identity: KeyIdentity) -> str:
        return self._codes.make(identity)

    async def use_code(self, code: str) -> KeyIdentity | None:
        return self._codes.use(code)
