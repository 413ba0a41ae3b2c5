"""Which sessions have changed, for clients that follow all of theirs. What has changed is read from the store by the listener."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from gateway.security.authentication import Caller

Change = Literal["changed", "deleted"]


class ChangeListener:
    """The changes of the sessions that one caller sees. Each session is in it once, however often it has changed."""

    def __init__(self, caller: Caller, removed: Callable[[ChangeListener], None]) -> None:
        self._caller, self._removed = caller, removed
        self._changes: dict[str, Change] = {}
        self._wake = asyncio.Event()
        self.ended = False
        """Whether no more changes come, because the gateway is shutting down."""

    def add(self, session_id: str, owner: str | None, change: Change) -> None:
        """Add a change, if the caller sees the session of this owner."""
        if self._caller.sees(owner) and self._changes.get(session_id) != "deleted":
            self._changes[session_id] = change
            self._wake.set()

    async def wait(self) -> bool:
        """Wait for changes. Returns False once the gateway is shutting down."""
        await self._wake.wait()
        return not self.ended

    def drain(self) -> dict[str, Change]:
        """Return the changes since the last call, by session."""
        if not self.ended:
            self._wake.clear()
        changes, self._changes = self._changes, {}
        return changes

    async def take(self) -> dict[str, Change] | None:
        """Wait for changes, and return them. None once the gateway is shutting down."""
        return self.drain() if await self.wait() else None

    def end(self) -> None:
        """No more changes come: `wait` and `take` return at once."""
        self.ended = True
        self._wake.set()

    def close(self) -> None:
        """Listen no more."""
        self._removed(self)


class SessionChanges:
    """Passes the changes that this gateway makes on to the listeners. Without any, a change costs nothing."""

    def __init__(self) -> None:
        self._listeners: set[ChangeListener] = set()
        self._closed = False

    def listen(self, caller: Caller) -> ChangeListener:
        """Return a listener that gets the changes from now on. Close it when it is not read any more."""
        listener = ChangeListener(caller, self._listeners.discard)
        if self._closed:
            listener.end()
        else:
            self._listeners.add(listener)
        return listener

    def announce(self, session_id: str, owner: str | None, change: Change = "changed") -> None:
        """A session was created or deleted, or what its information has is different now."""
        for listener in self._listeners:
            listener.add(session_id, owner, change)

    def close(self) -> None:
        """End all listeners: the gateway is shutting down."""
        self._closed = True
        for listener in self._listeners:
            listener.end()
