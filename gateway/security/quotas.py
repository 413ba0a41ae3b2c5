"""Quotas: connections and event streams of one key at the same time, and bodies that are read before their sender is known.

All default keys count as one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from gateway.config import LimitSettings
from gateway.errors import TooMany

TOO_MANY_BODIES = "too many requests have their key in the body; send it in the Authorization header"


class Quota:
    """Counts what the holders of keys have; at most `limit` for each key, 0 for any number."""

    def __init__(self, limit: int, what: str, setting: str) -> None:
        self._limit, self._what, self._setting = limit, what, setting
        self._held: Counter[str | None] = Counter()

    @property
    def held(self) -> Mapping[str | None, int]:
        """How many each key has, by its name. A key that has none is not in it."""
        return self._held

    def take(self, owner: str | None) -> Callable[[], None]:
        """Count one more for the key of this name, and return the function that releases it. Raises TooMany."""
        if self._limit and self._held[owner] >= self._limit:
            raise TooMany(f"this key has {self._limit} {self._what} open, and no more may be ({self._setting}); close some")
        self._held[owner] += 1
        released = False

        def release() -> None:
            nonlocal released
            if not released:
                released = True
                self._held[owner] -= 1
                if not self._held[owner]:
                    del self._held[owner]

        return release


class KeyQuotas:
    """The quotas of a gateway. A connection is a request in progress, a WebSocket, or an ACP connection over HTTP."""

    def __init__(self, limits: LimitSettings) -> None:
        self.connections = Quota(limits.connections_per_key, "connections", "limits.connections_per_key")
        self.streams = Quota(limits.streams_per_key, "event streams", "limits.streams_per_key")


class RequestQuotas:
    """What one request holds, until `release`. Raises TooMany if there is no connection for it.

    The node to which a client is connected counts the connection, and the one that responds counts the stream: `forwarded` is
    whether the request comes from another node.
    """

    def __init__(self, quotas: KeyQuotas, owner: str | None, *, forwarded: bool = False) -> None:
        self._streams, self._owner = quotas.streams, owner
        self._releases = [] if forwarded else [quotas.connections.take(owner)]
        self._stream: Callable[[], None] | None = None

    def take_stream(self) -> None:
        """Count an event stream. Call it before anything begins whose events are streamed. Raises TooMany."""
        self._stream = self._streams.take(self._owner)
        self._releases.append(self._stream)

    def release_stream(self) -> None:
        """Count no event stream any more: another node responds."""
        if self._stream is not None:
            self._stream()

    def release(self) -> None:
        for release in self._releases:
            release()


class UnauthenticatedBodies:
    """Bodies that are read to find a key in them."""

    AT_A_TIME = 4
    WAITING = 32
    """Each of those that wait has a connection."""

    def __init__(self) -> None:
        self._reading = asyncio.Semaphore(self.AT_A_TIME)
        self.waiting = 0

    @property
    def full(self) -> bool:
        """Whether one more has to wait."""
        return self._reading.locked()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[None]:
        """Wait until a body can be read. Raises TooMany if too many wait."""
        if self.waiting >= self.WAITING:
            raise TooMany(TOO_MANY_BODIES)
        self.waiting += 1
        try:
            await self._reading.acquire()
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self._reading.release()
