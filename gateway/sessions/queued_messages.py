"""The requests that wait until a session's run has ended, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from gateway.errors import Conflict, TooMany

MAX_QUEUED = 16
"""The most requests that may wait for one session."""


class TurnQueue:
    """`free` returns whether a turn may begin; call `advance` whenever that may have changed. A turn holds the `lock`.

    `changed` is called when the number of requests has changed.
    """

    def __init__(self, lock: asyncio.Lock, free: Callable[[], bool], changed: Callable[[], None]) -> None:
        self._lock, self._free, self._changed = lock, free, changed
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @property
    def empty(self) -> bool:
        return not self._waiting

    def advance(self) -> None:
        """Wake the first request, if a turn may begin."""
        if self._waiting and self._free() and not self._waiting[0].done():
            self._waiting[0].set_result(None)

    @asynccontextmanager
    async def turn(self, disconnected: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Wait in the queue; inside, this request is the first, a turn may begin, and the lock is held.

        Raises TooMany where the queue is full; Conflict when `disconnected` returns before the request is the first.
        """
        if len(self._waiting) >= MAX_QUEUED:
            raise TooMany(f"{MAX_QUEUED} messages are queued for this session already; try again later")
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        self._changed()
        gone = asyncio.ensure_future(disconnected())
        try:
            self.advance()
            while True:
                await asyncio.wait((mine, gone), return_when=asyncio.FIRST_COMPLETED)
                if gone.done() and not mine.done():
                    raise Conflict("the client disconnected before its message was submitted")
                async with self._lock:
                    if self._free():
                        yield
                        return
                # Another turn has begun since this request was woken.
                self._waiting[0] = mine = asyncio.get_running_loop().create_future()
        finally:
            gone.cancel()
            self._waiting.remove(mine)
            self._changed()
            self.advance()
