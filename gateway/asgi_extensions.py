"""Keys in `scope["extensions"]` by which applications and the HTTP server notify each other about the client's connection."""

from __future__ import annotations

WATCH_DISCONNECT = "portico.watch_disconnect"
"""The key in `scope["extensions"]` of a function without parameters. An application calls it before it waits for
`http.disconnect` without having begun its response: otherwise a client may be gone without notice until then."""
CLOSE_AT_EOF = "portico.close_at_eof"
"""The key in `scope["extensions"]` that an application sets if a client that has closed its side of the connection is gone."""
WEBSOCKET_TEXTS = "portico.websocket_texts"
"""The key in `scope["extensions"]` of a WebSocket whose server writes several text frames at once. They are the member of this
name of a `websocket.send` event, as a list of bytes."""
EVENT_STREAM = "portico.event_stream"
"""The key in `scope["extensions"]` that an application sets if its response is an event stream."""
NO_PINGS = "portico.no_pings"
"""The key in `scope["extensions"]` that an application sets before it accepts a WebSocket whose client is not pinged."""
