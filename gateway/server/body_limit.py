"""Rejects request bodies over a size, before they are in memory."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """ASGI middleware: 413 for a body of more than `limit` bytes, with or without a Content-Length.

    The rest of such a body is read and discarded: if the connection were closed at once, the client might lose the response.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        content_length = dict(scope["headers"]).get(b"content-length", b"0")
        if content_length.isdigit() and int(content_length) > self._limit:
            return await self._reject(send)
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                # The app's exception handler sends the response.
                raise HTTPException(413, self._text)
            return message

        await self._app(scope, counted, send)

    @property
    def _text(self) -> str:
        return f"the body is larger than {self._limit} bytes (server.max_body); send less at a time"

    async def _reject(self, send: Send) -> None:
        body = b'{"error":"%b"}' % self._text.encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})
