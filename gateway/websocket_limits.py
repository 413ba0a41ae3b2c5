"""What uvicorn lacks for WebSocket clients that do not answer. The first WebSocket imports it: websockets takes 9 ms.

It depends on undocumented parts of uvicorn, as gateway/connection_limits.py does:

* `uvicorn.protocols.websockets.websockets_sansio_impl.WebSocketsSansIOProtocol`, the base class of `WebSocketLimitProtocol`:
  after a ping without a pong uvicorn closes the transport, which waits until the client has read everything. Overridden:
  `keepalive_timeout`. Read: `loop`, `transport`.
"""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

WEBSOCKET_ABORT_DELAY = 5.0
"""Seconds between the close frame after a missing pong and the abort of the connection."""


class WebSocketLimitProtocol(WebSocketsSansIOProtocol):
    """A WebSocket whose connection is aborted when a ping gets no pong, even if the client has stopped reading."""

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        # The abort also ends the application's pending `send` and `receive`.
        self.loop.call_later(WEBSOCKET_ABORT_DELAY, self.transport.abort)
