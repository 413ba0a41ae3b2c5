"""Responses of server-sent events, for every protocol that streams: headers, keep-alive comments, revoked keys.

No other module imports sse-starlette.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import cache
from typing import Any

from fastapi import Response
from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus
from starlette.types import Receive, Scope, Send

from drivers.runtime.clock import Clock
from gateway.errors import LeaseLost, Unauthorized

log = logging.getLogger(__name__)

# Streams end when their runs end. sse-starlette would end them at the first signal, before the last event.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]


KEEP_ALIVE = b": keep-alive\n\n"


def event_stream(
    chunks: AsyncIterator[bytes],
    keep_alive: float,
    *,
    clock: Clock,
    keep_alive_frame: bytes = KEEP_ALIVE,
    closed: Callable[[], None] | None = None,
) -> Response:
    """Return a response that streams encoded frames. It sends a comment, which keeps it open, every `keep_alive` seconds.

    A protocol that has an event for that sends it instead, as `keep_alive_frame`.

    `closed` is called when the response has ended, for whatever reason. A generator of chunks does not begin, and so does nothing
    at its end, if the client disconnects before the first one.
    """
    return _EventStream(chunks, keep_alive, keep_alive_frame, closed, clock)


def _response_of_package(chunks: AsyncIterable[bytes], keep_alive: float) -> EventSourceResponse:
    # Proxies must not cache, compress or buffer the stream; sse-starlette adds X-Accel-Buffering: no.
    return EventSourceResponse(chunks, ping=keep_alive, sep="\n", headers={"Cache-Control": "no-cache, no-transform"})


@cache
def _raw_headers() -> tuple[tuple[bytes, bytes], ...]:
    return tuple(_response_of_package(_nothing(), 1.0).raw_headers)


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield


class _EventStream(Response):
    """Sends the frames and the keep-alive comments, until the last frame or until the client disconnects.

    `EventSourceResponse` runs four tasks for each response, in a task group of anyio, and makes its headers anew. That is a tenth
    of the time in which a turn of the echo agent is answered (sse-starlette 3.7.0). Its headers and its responses to HEAD are
    used.
    """

    def __init__(
        self,
        chunks: AsyncIterable[bytes],
        keep_alive: float,
        keep_alive_frame: bytes,
        closed: Callable[[], None] | None,
        clock: Clock,
    ) -> None:
        # Not by the base class, which makes the headers of a body.
        self.status_code, self.background, self.raw_headers = 200, None, list(_raw_headers())
        self.body_iterator, self.ping_interval = chunks, keep_alive
        self._keep_alive_frame, self._complete, self._closed = keep_alive_frame, False, closed
        self._writing, self._clock = asyncio.Lock(), clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "HEAD":
            response = _response_of_package(self.body_iterator, self.ping_interval)
            response.raw_headers = self.raw_headers
            return await response(scope, receive, send)
        sending = asyncio.create_task(self._send_all(send))
        tasks = [sending, asyncio.create_task(_cancel_on_disconnect(sending, receive))]
        try:
            if not (await self._clock.wait((sending,), self.ping_interval))[0]:
                # Most streams end before they need this task.
                tasks.append(asyncio.create_task(self._keep_alive(send)))
                await asyncio.wait((sending,))
        finally:
            for task in tasks:
                # Once: a second time would interrupt what the generator of the chunks does at its end.
                if not task.cancelling():
                    task.cancel()
            await asyncio.wait(tasks)
            if self._closed is not None:
                self._closed()
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with aclosing(aiter(self.body_iterator)) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    async with self._writing:
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except LeaseLost as error:
            # The guard cuts off an incomplete response, as if this gateway had been killed: the client asks again.
            log.warning("a stream is broken off: %s", error)
            return
        async with self._writing:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            self._complete = True

    async def _keep_alive(self, send: Send) -> None:
        while True:
            # It waits while a chunk waits for a client that reads slowly. That may have been the end of the response.
            async with self._writing:
                if self._complete:
                    return
                await send({"type": "http.response.body", "body": self._keep_alive_frame, "more_body": True})
            await self._clock.sleep(self.ping_interval)


async def _cancel_on_disconnect(sending: asyncio.Task[None], receive: Receive) -> None:
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    finally:
        if not sending.cancelling():
            sending.cancel()


def until_unauthorized(response: Response, check: Callable[[], Awaitable[object]]) -> Response:
    """Return the response. A stream ends before its next chunk once `check` raises Unauthorized."""
    if isinstance(response, _EventStream):
        response.body_iterator = _until_unauthorized(response.body_iterator, check)
    return response


async def _until_unauthorized(chunks: AsyncIterable[Any], check: Callable[[], Awaitable[object]]) -> AsyncIterator[Any]:
    async with aclosing(aiter(chunks)) as open_chunks:  # type: ignore[type-var]
        with suppress(Unauthorized):
            async for chunk in open_chunks:
                await check()
                yield chunk
