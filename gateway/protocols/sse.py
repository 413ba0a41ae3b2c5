"""Responses of server-sent events, for every protocol that streams: headers, keep-alive comments, revoked keys.

No other module imports sse-starlette.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Any

from fastapi import Response
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus
from starlette.types import Receive, Scope, Send

from gateway.asgi_extensions import CLOSE_AT_EOF, EVENT_STREAM
from gateway.errors import Unauthorized

# Streams end when their runs end. sse-starlette would end them at the first signal, before the last event.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]


def event_stream(chunks: AsyncIterator[bytes], keep_alive: float, *, close_at_eof: bool = False) -> EventSourceResponse:
    """Return a response that streams encoded frames. Every `keep_alive` seconds it sends a comment, which keeps it open.

    With `close_at_eof` it ends when the client closes its side of the connection, for chunks that are sent only once.
    """
    response = _EventStream(
        chunks,
        ping=keep_alive,
        sep="\n",
        ping_message_factory=lambda: ServerSentEvent(comment="keep-alive", sep="\n"),
        # Proxies must not cache, compress or buffer the stream; sse-starlette adds X-Accel-Buffering: no.
        headers={"Cache-Control": "no-cache, no-transform"},
    )
    response.close_at_eof = close_at_eof
    return response


class _EventStream(EventSourceResponse):
    close_at_eof = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        extensions = scope.setdefault("extensions", {})
        extensions[EVENT_STREAM] = {}
        if self.close_at_eof:
            extensions[CLOSE_AT_EOF] = {}
        await super().__call__(scope, receive, send)


def until_unauthorized(response: Response, check: Callable[[], object]) -> Response:
    """Return the response. A stream ends before its next chunk once `check` raises Unauthorized."""
    if isinstance(response, EventSourceResponse):
        response.body_iterator = _until_unauthorized(response.body_iterator, check)
    return response


async def _until_unauthorized(chunks: AsyncIterable[Any], check: Callable[[], object]) -> AsyncIterator[Any]:
    async with aclosing(aiter(chunks)) as open_chunks:  # type: ignore[type-var]
        with suppress(Unauthorized):
            async for chunk in open_chunks:
                check()
                yield chunk
