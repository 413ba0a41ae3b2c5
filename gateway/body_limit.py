"""Limits of a request body: its size, before it is in memory, and the time in which it arrives."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drivers.runtime.clock import SYSTEM_CLOCK, Clock

BODY_SECONDS = 30.0
"""Seconds for a body to arrive, and one more for each MIN_RATE bytes that have arrived: a slow body costs a connection."""
MIN_RATE = 8 * 1024


class BodyLimit:
    """ASGI middleware: 413 for a body of more than `limit` bytes, with or without a Content-Length; 408 for one that is too slow.

    The rest of a body that is too large is read and discarded: if the connection were closed at once, the client might lose the
    response. `name` is the limit's in the error.
    """

    def __init__(self, app: ASGIApp, limit: int, name: str = "server.max_body", clock: Clock = SYSTEM_CLOCK) -> None:
        self._app, self._limit, self._name, self._clock = app, limit, name, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        content_length = dict(scope["headers"]).get(b"content-length", b"0")
        if content_length.isdigit() and int(content_length) > self._limit:
            return await self._reject(send)
        began = self._clock.monotonic()
        received, complete, responding = 0, False, False

        async def limited() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                until = began + BODY_SECONDS + received / MIN_RATE
                async with self._clock.timeout(until - self._clock.monotonic()):
                    message = await receive()
            except TimeoutError:
                if responding:
                    return {"type": "http.disconnect"}
                text = (
                    f"the body did not arrive within {BODY_SECONDS:g} seconds, or arrives slower than {MIN_RATE} bytes a second"
                )
                raise HTTPException(408, text, {"Connection": "close"}) from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body")
            if received > self._limit:
                # The app's exception handler sends the response.
                raise HTTPException(413, self._text)
            return message

        async def watched(message: Message) -> None:
            nonlocal responding
            responding = True
            await send(message)

        await self._app(scope, limited, watched)

    @property
    def _text(self) -> str:
        return f"the body is larger than {self._limit} bytes ({self._name}); send less at a time"

    async def _reject(self, send: Send) -> None:
        body = b'{"error":"%b"}' % self._text.encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})
