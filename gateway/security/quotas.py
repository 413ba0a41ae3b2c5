"""How many connections and event streams the holder of one key may have at the same time. All default keys count as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gateway.config import LimitSettings
from gateway.errors import TooMany


class Quota:
    """Counts what the holders of keys have; at most `limit` for each key, 0 for any number."""

    def __init__(self, limit: int, what: str, setting: str) -> None:
        self._limit, self._what, self._setting = limit, what, setting
        self._held: Counter[str | None] = Counter()

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
    """What one request holds, until `release`. Raises TooMany if there is no connection for it."""

    def __init__(self, quotas: KeyQuotas, owner: str | None) -> None:
        self._streams, self._owner = quotas.streams, owner
        self._releases = [quotas.connections.take(owner)]

    def take_stream(self) -> None:
        """Count an event stream. Call it before anything begins whose events are streamed. Raises TooMany."""
        self._releases.append(self._streams.take(self._owner))

    def release(self) -> None:
        for release in self._releases:
            release()
