"""What uvicorn lacks for WebSocket clients that do not answer. The first WebSocket imports it: websockets takes 9 ms.

It depends on undocumented parts of uvicorn, as gateway/connection_limits.py does:

* `uvicorn.protocols.websockets.websockets_sansio_impl.WebSocketsSansIOProtocol`, the base class of `WebSocketLimitProtocol`:
  after a ping without a pong uvicorn closes the transport, which waits until the client has read everything. Overridden:
  `keepalive_timeout`. Read: `loop`, `transport`.
* Its `run_asgi` and `send`: each frame is written by itself, which costs more than all else that an update of a session costs.
  Overridden for the extension WEBSOCKET_TEXTS. Read: `scope`, `writable`, `disconnected`, `conn`.
* Its `start_keepalive`, called when the WebSocket is accepted: overridden for the extension NO_PINGS.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from gateway.asgi_extensions import NO_PINGS, WEBSOCKET_TEXTS
from gateway.tcp_keepalive import keep_alive

WEBSOCKET_ABORT_DELAY = 5.0
"""Seconds between the close frame after a missing pong and the abort of the connection."""


class WebSocketLimitProtocol(WebSocketsSansIOProtocol):
    """A WebSocket whose connection is aborted when a ping gets no pong, even if the client has stopped reading."""

    async def run_asgi(self) -> None:
        self.scope["extensions"][WEBSOCKET_TEXTS] = {}
        await super().run_asgi()

    async def send(self, message: Any) -> None:
        texts = message.get(WEBSOCKET_TEXTS)
        if texts is not None:
            await self.writable.wait()
            if not self.disconnected:
                with suppress(InvalidState):
                    for text in texts[:-1]:
                        self.conn.send_text(text)
            # It writes the frames before, too.
            message = {"type": "websocket.send", "text": texts[-1].decode()}
        await super().send(message)

    def start_keepalive(self) -> None:
        if NO_PINGS in self.scope["extensions"]:
            keep_alive(self.transport)
        else:
            super().start_keepalive()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        # The abort also ends the application's pending `send` and `receive`.
        self.loop.call_later(WEBSOCKET_ABORT_DELAY, self.transport.abort)
