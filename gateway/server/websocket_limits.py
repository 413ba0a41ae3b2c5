"""A WebSocket whose client has stopped reading ends; uvicorn's waits for it, with all that is still to be written."""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

PING_EVERY = 20.0
PONG_WITHIN = 20.0
"""Seconds in which a client reads what was written before a ping, and answers it."""
LINGER = 5.0
"""Seconds that are left to it to read why it is closed."""


class WebSocketLimitProtocol(WebSocketsSansIOProtocol):
    """Lets go of a client that has not answered a ping, read or unread."""

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        # What waits for `writable`, and the handler that waits for a frame, end with the connection.
        self.loop.call_later(LINGER, self.transport.abort)
