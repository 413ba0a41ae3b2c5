"""Limit of the time that a request waits while the store does not say whether its writes are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drivers.runtime.clock import Clock, Timer

DOUBT_TIMEOUT = 30.0
"""Seconds after which requests without a response are refused."""
UNKNOWN = (
    f"the store has not answered for {DOUBT_TIMEOUT:g} s, and it is not known whether this request is stored; send it again with "
    "the same Idempotency-Key: it gets the stored turn, or begins one if there is none. A request without a key may be stored: "
    "look at the session before you repeat it"
)


class UnansweredRequests:
    """The HTTP requests without a response. They are refused every DOUBT_TIMEOUT while `is_in_doubt`, and handled to their end.

    For its handler, the client of a refused request has disconnected.
    """

    def __init__(self, clock: Clock, is_in_doubt: Callable[[], bool]) -> None:
        self._clock, self._is_in_doubt = clock, is_in_doubt
        self._responses = set[_Response]()
        self._refusing = set[asyncio.Task[None]]()
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._responses)

    def doubt_began(self) -> None:
        """The store does not say whether writes are stored."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_later(DOUBT_TIMEOUT, self._refuse)

    def _refuse(self) -> None:
        if not self._is_in_doubt():
            return
        for response in self._responses:
            response.refused = True
            refusing = asyncio.create_task(response.refuse())
            self._refusing.add(refusing)
            refusing.add_done_callback(self._refusing.discard)
        self._responses.clear()
        self.doubt_began()

    async def handle(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let an app respond to a request."""
        response = _Response(scope, receive, send, self._responses)
        try:
            await app(scope, receive, response.send)
        finally:
            self._responses.discard(response)


class DoubtLimit:
    """ASGI middleware: requests of a gateway are refused while the store does not say whether their writes are stored."""

    def __init__(self, app: ASGIApp, unanswered: Callable[[], UnansweredRequests]) -> None:
        self._app, self._unanswered = app, unanswered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        await self._unanswered().handle(self._app, scope, receive, send)


class _Response:
    """The response to one request, until it begins in the set `unanswered`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, unanswered: set[_Response]) -> None:
        self._scope, self._receive, self._send, self._unanswered = scope, receive, send, unanswered
        self.refused = False
        unanswered.add(self)

    async def send(self, message: Message) -> None:
        self._unanswered.discard(self)
        if not self.refused:
            await self._send(message)

    async def refuse(self) -> None:
        """Send the response in place of the handler, with `refused` set."""
        await JSONResponse({"error": UNKNOWN}, 503)(self._scope, self._receive, self._send)
