"""Idempotency: a request under a key runs once, however often it is repeated."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from pydantic_core import to_json

from gateway.errors import Conflict
from gateway.store import KeyRecord, KeyStored, Store

Answer = TypeVar("Answer")
ATTEMPTS = 3
"""To start what a request asks for, where other nodes have begun the same and failed."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A request under an idempotency key. Both are hashes: a client's key may be of any length, and a request hold a secret."""

    key: str
    digest: str

    @classmethod
    def of(cls, caller: str | None, operation: str, key: str, request: Any) -> IdempotencyKey:
        """The key of a caller for an operation; a repeated request must have an equal `request` (JSON data)."""
        return cls(_hash([caller, operation, key]), _hash(request))

    def record(self, log_id: str, first_seq: int) -> KeyRecord:
        """The record that is stored in one transaction with the first event of what the request starts."""
        return KeyRecord(self.key, self.digest, log_id, first_seq)

    def provisional_record(self, log_id: str, first_seq: int) -> KeyRecord:
        """The record that is stored before an event with this key, which will have the number `first_seq` or a greater one."""
        return KeyRecord(self.key, self.digest, log_id, -first_seq)


class Idempotency:
    """Finds what was started under which key. A refused request is not recorded, so that it can be repeated."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def once(
        self,
        key: IdempotencyKey | None,
        start: Callable[[], Awaitable[Answer]],
        again: Callable[[KeyRecord], Awaitable[Answer]],
        find: Callable[[KeyRecord], Awaitable[int | None]] | None = None,
    ) -> Answer:
        """The result of `start`, which stores the key; or that of `again`, with the record that an earlier request has stored.

        `find` returns the number of the event with the key of a provisional record. If the log has none it removes the key and
        returns None: the request is a new one. Raises Conflict where the key belongs to another request.
        """
        if key is None:
            return await start()
        async with self._locks.setdefault(key.key, asyncio.Lock()):
            for _ in range(ATTEMPTS):
                known = await self._known(key, find)
                if known is not None:
                    break
                try:
                    return await start()
                except KeyStored as error:
                    # By another node of the cluster, which has no part in the lock. `start` has changed nothing.
                    stored_elsewhere = error
            else:
                # What the others began has failed each time.
                raise stored_elsewhere
        if known.digest != key.digest:
            raise Conflict("this idempotency key belongs to another request; a new request takes a new key")
        return await again(known)

    async def _known(self, key: IdempotencyKey, find: Callable[[KeyRecord], Awaitable[int | None]] | None) -> KeyRecord | None:
        known = await self._store.idempotency_keys.get(key.key)
        if known is not None and known.provisional and find is not None:
            first_seq = await find(known)
            return None if first_seq is None else replace(known, first_seq=first_seq)
        return known


def _hash(data: Any) -> str:
    return hashlib.sha256(to_json(data)).hexdigest()
