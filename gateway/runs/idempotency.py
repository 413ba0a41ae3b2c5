"""Idempotency: what is asked for under a key runs once, however often it is asked for."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from pydantic_core import to_json

from gateway.errors import Conflict
from gateway.store import KeyRecord, Store

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A request under an idempotency key; both are hashes, since the client's word may be of any length and hold a secret."""

    key: str
    digest: str

    @classmethod
    def of(cls, caller: str | None, operation: str, key: str, request: Any) -> IdempotencyKey:
        """`request` is what must be equal (JSON data) for the same key of the same caller's to mean the same operation."""
        return cls(_hash([caller, operation, key]), _hash(request))

    def record(self, log_id: str, first_seq: int) -> KeyRecord:
        """To be stored together with the beginning of what was asked for: both or neither."""
        return KeyRecord(self.key, self.digest, log_id, first_seq)


class Idempotency:
    """Remembers what was started under which key. Refusals are not remembered: nothing was started."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def once(
        self, ask: IdempotencyKey | None, start: Callable[[], Awaitable[Answer]], again: Callable[[KeyRecord], Awaitable[Answer]]
    ) -> Answer:
        """What `start` gives, which stores the key; or what `again` makes of the record that an earlier one has stored.

        Raises Conflict where the key belongs to another request.
        """
        if ask is None:
            return await start()
        async with self._asking.setdefault(ask.key, asyncio.Lock()):
            known = await self._store.idempotency_keys.get(ask.key)
            if known is None:
                return await start()
        if known.digest != ask.digest:
            raise Conflict("this idempotency key belongs to another request; a new request takes a new key")
        return await again(known)


def _hash(data: Any) -> str:
    return hashlib.sha256(to_json(data)).hexdigest()
