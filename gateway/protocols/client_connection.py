"""The connection of an HTTP request: whether its client is still there, while a response is made that is sent at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TypeVar

from fastapi import Request

Result = TypeVar("Result")


class ClientConnection:
    """The connection of a request whose body has been read."""

    def __init__(self, http: Request) -> None:
        self._http = http

    async def disconnected(self) -> None:
        """Return when the client's connection is gone."""
        while (await self._http.receive())["type"] != "http.disconnect":
            pass

    async def wait_for(self, work: Coroutine[None, None, Result], dropped: Callable[[], None] | None) -> Result:
        """Return what `work` returns. Call `dropped`, if it is given, if the client disconnects meanwhile."""
        working = asyncio.create_task(work)
        try:
            if dropped is not None:
                await self._watch(working, dropped)
            return await working
        finally:
            working.cancel()

    async def _watch(self, working: asyncio.Task[Result], dropped: Callable[[], None]) -> None:
        disconnecting = asyncio.create_task(self.disconnected())
        try:
            await asyncio.wait((working, disconnecting), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                dropped()
        finally:
            disconnecting.cancel()
            with suppress(asyncio.CancelledError):
                await disconnecting
