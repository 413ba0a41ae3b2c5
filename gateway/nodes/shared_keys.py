"""The named keys of all nodes of a cluster, as they are in the store. `portico key` changes them while the nodes run."""

from __future__ import annotations

import asyncio
import logging

from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from gateway.security.api_keys import NamedKey, NamedKeys, name_in_use, new_key, no_key
from gateway.security.sign_ins import digest_of
from gateway.store.credentials import CredentialRepository, NamedKeyRow

log = logging.getLogger(__name__)


class SharedKeys:
    """The keys by their names; only their hashes are stored."""

    def __init__(self, repository: CredentialRepository, clock: Clock = SYSTEM_CLOCK) -> None:
        self._repository, self._clock = repository, clock

    async def keys(self) -> list[NamedKey]:
        """As Credentials."""
        rows = (await self._repository.all()).keys
        return [NamedKey(row.name, row.created_at, row.used_at) for row in rows]

    async def add_key(self, name: str) -> str:
        """As Credentials."""
        key = new_key(name)
        used = await self._repository.add_key(NamedKeyRow(digest_of(key), name, self._clock.time(), None))
        if used is not None:
            raise name_in_use(used)
        return key

    async def remove_key(self, name: str) -> None:
        """As Credentials."""
        if not await self._repository.remove_key(name):
            raise no_key(name)


async def move_to_store(files: NamedKeys, repository: CredentialRepository) -> None:
    """Store the keys of a data directory, which was that of a single daemon, for all nodes, and delete their files.

    A key whose name is in use by another one is not moved.
    """
    for digest, key in await asyncio.to_thread(files.stored):
        used = await repository.add_key(NamedKeyRow(digest, key.name, key.created_at, key.used_at))
        if used is None:
            await asyncio.to_thread(files.forget, digest)
            log.warning("the named key %r of this data directory is valid on all nodes of the cluster from now on", key.name)
        else:
            log.warning("the named key %r of this data directory is not valid: the nodes have a key %r already", key.name, used)
