"""Server-sent events, for every protocol that streams: the response, its headers, and its keep-alive.

The only module that touches sse-starlette.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus

# Streams end because their runs end. sse-starlette would cut them at the first signal, before the last event.
AppStatus.enable_automatic_graceful_drain = False


def event_stream(chunks: AsyncIterator[bytes], keep_alive: float) -> EventSourceResponse:
    """A response of ready-made frames, several in one write; a comment every `keep_alive` seconds keeps it open."""
    return EventSourceResponse(
        chunks,
        ping=keep_alive,
        sep="\n",
        ping_message_factory=lambda: ServerSentEvent(comment="keep-alive", sep="\n"),
        # Nothing in between may keep it, pack it or gather it; sse-starlette adds X-Accel-Buffering: no.
        headers={"Cache-Control": "no-cache, no-transform"},
    )
