"""The requests that wait for a session's run to end, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from gateway.errors import Conflict, TooMany

LONGEST = 16
"""How many may wait for one session."""


class TurnQueue:
    """`free` says whether the next one may go; call `advance` whenever that may have changed."""

    def __init__(self, free: Callable[[], bool]) -> None:
        self._free = free
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def empty(self) -> bool:
        return not self._waiting

    def advance(self) -> None:
        """Let the first one go, if the way is free."""
        if self._waiting and self._free() and not self._waiting[0].done():
            self._waiting[0].set_result(None)

    @asynccontextmanager
    async def place(self, gone: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Wait in line; inside it is this one's turn, and nobody overtakes it. Raises TooMany; Conflict when `gone` returns."""
        if len(self._waiting) >= LONGEST:
            raise TooMany(f"{LONGEST} messages wait for this session already; try again later")
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        going = asyncio.ensure_future(gone())
        try:
            self.advance()
            while True:
                await asyncio.wait((mine, going), return_when=asyncio.FIRST_COMPLETED)
                if going.done() and not mine.done():
                    raise Conflict("the client has gone; its message was not said")
                if self._free():
                    break
                # Something else has begun since it was told to go.
                self._waiting[0] = mine = asyncio.get_running_loop().create_future()
            yield
        finally:
            going.cancel()
            self._waiting.remove(mine)
            self.advance()
