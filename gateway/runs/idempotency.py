"""Idempotency: a request under a key runs once, however often it is repeated. It knows no states."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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

    def require_same(self, known: KeyRecord) -> None:
        """Raises Conflict where the key that an earlier request has stored belongs to another request than this one."""
        if known.digest != self.digest:
            raise Conflict("this idempotency key belongs to another request; a new request takes a new key")


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
    ) -> Answer:
        """The result of `start`, which stores the key; or that of `again`, with the record that an earlier request has stored.

        Raises Conflict where the key belongs to another request.
        """
        if key is None:
            return await start()
        async with self._locks.setdefault(key.key, asyncio.Lock()):
            for _ in range(ATTEMPTS):
                known = await self._store.idempotency_keys.get(key.key)
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
        key.require_same(known)
        return await again(known)


def _hash(data: Any) -> str:
    return hashlib.sha256(to_json(data)).hexdigest()
