"""Limits of a request body: its size, before it is in memory, and the time in which it arrives."""

from __future__ import annotations

import math

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from drivers.runtime.clock import Clock

BODY_SECONDS = 30.0
"""Seconds for a body to arrive, and one more for each MIN_RATE bytes that have arrived: a slow body costs a connection."""
MIN_RATE = 8 * 1024
PAUSE = 0.5
"""Seconds without anything of a body that is discarded, after which the client is taken to wait for the response."""
DISCARDED = 2
"""How many times the limit is read of a body that is too large: a client that sends it all before it reads gets the response."""


class RequestBody:
    """The body of one request, between the server and an app: call the app with `receive` and `send`.

    `receive` raises HTTPException: 413 for a body of more than `limit` bytes, 408 for one that is too slow. `name` is the limit's
    in the error. Before the response begins, `send` reads and discards the rest of the body: so the client reads the response,
    and can use the connection again. Otherwise the response has `Connection: close`.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit: int, name: str, clock: Clock) -> None:
        self._receive, self._send, self._limit, self._name, self._clock = receive, send, limit, name, clock
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        self._announced = int(length) if length.isdecimal() else 0
        self._complete = not self._announced and "transfer-encoding" not in headers
        self._awaits_continue = "expect" in headers
        self._began, self._received, self._responding = clock.monotonic(), 0, False

    async def receive(self) -> Message:
        """Return the next event of ASGI. Raises HTTPException."""
        if self._complete or self._responding:
            return await self._receive()
        if self._announced > self._limit:
            raise self._too_large()
        message = await self._next()
        if self._received > self._limit:
            # The app's exception handler sends the response.
            raise self._too_large()
        return message

    async def send(self, message: Message) -> None:
        """Send an event of ASGI."""
        if message["type"] == "http.response.start" and not self._responding:
            self._responding = True
            # After 408 there is no more time.
            if not self._complete and (message["status"] == 408 or not await self._discard()):
                headers = MutableHeaders(raw=[*message.get("headers", ())])
                headers["Connection"] = "close"
                message = {**message, "headers": headers.raw}
        await self._send(message)

    async def _next(self, at_most: float = math.inf) -> Message:
        until = self._began + BODY_SECONDS + self._received / MIN_RATE
        try:
            async with self._clock.timeout(min(until - self._clock.monotonic(), at_most)):
                message = await self._receive()
        except TimeoutError:
            text = f"the body did not arrive within {BODY_SECONDS:g} seconds, or arrives slower than {MIN_RATE} bytes a second"
            raise HTTPException(408, text) from None
        self._awaits_continue = False
        self._received += len(message.get("body", b""))
        self._complete = not message.get("more_body")
        return message

    async def _discard(self) -> bool:
        """Read the rest of the body. Return whether that was all of it."""
        if self._awaits_continue or self._announced > self._limit * DISCARDED:
            return False
        try:
            while not self._complete and self._received <= self._limit * DISCARDED:
                await self._next(PAUSE)
        except HTTPException:
            return False
        return self._complete

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the body is larger than {self._limit} bytes ({self._name}); send less at a time")
