"""Named keys in the store. `portico key` changes them while daemons run, or before the first start."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from gateway.config import AGENT_NAME
from gateway.errors import ConfigError
from gateway.security.api_keys import random_key
from gateway.security.sign_ins import digest_of
from gateway.store.credentials import CredentialRepository, NamedKeyRow


class NamedKeys:
    """The named keys by their names; only their hashes are stored. Each method is one transaction of the store."""

    def __init__(self, repository: CredentialRepository) -> None:
        self._repository = repository

    async def all(self) -> Sequence[NamedKeyRow]:
        """Return all keys, the oldest first."""
        return (await self._repository.all()).keys

    async def add(self, name: str) -> str:
        """Create a key and return it. Raises ConfigError if the name is in use or cannot be one."""
        if not re.fullmatch(AGENT_NAME, name):
            raise ConfigError("a key's name is letters, digits, '.', '_' and '-', 64 at most, and starts with a letter or digit")
        key = random_key()
        used = await self._repository.add_key(NamedKeyRow(digest_of(key), name, time.time(), None))
        if used is not None:
            # Names of workspaces, which some file systems compare without case.
            raise ConfigError(f"there is a key {used!r} already; take another name, or `portico key remove {used}` first")
        return key

    async def remove(self, name: str) -> None:
        """Revoke a key. Raises ConfigError if no key has this name."""
        if not await self._repository.remove_key(name):
            raise ConfigError(f"there is no key {name!r}; `portico key list` shows those there are")
