"""Server-sent events, by httpx-sse: of whole streams, of a stream while it arrives, and of parts of a stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
from httpx_sse import EventSource, ServerSentEvent

Frame = tuple[str, dict[str, Any]]
"""An event: its name and its data."""
NumberedEvent = tuple[str, str, Any]
"""An event with its id: (id, name, data)."""
HEADERS = {"content-type": "text/event-stream"}


def parse(received: bytes | str) -> list[ServerSentEvent]:
    """Return the complete events of a stream, whose last one may be cut off."""
    content = received.encode() if isinstance(received, str) else received
    # Comments are no events.
    return [event for event in EventSource(httpx.Response(200, headers=HEADERS, content=content)).iter_sse() if event.data]


def numbered(received: bytes | str) -> list[NumberedEvent]:
    """Return the complete events of a stream, whose last one may be cut off."""
    return [(event.id, event.event, json.loads(event.data)) for event in parse(received)]


def parse_events(text: str) -> list[NumberedEvent]:
    """Return the complete events of a stream in which each event has an id and is written as the gateway does it."""
    found = numbered(text)
    blocks = [block for block in text.split("\n\n")[:-1] if not block.startswith(":")]
    for block, (number, name, _) in zip(blocks, found, strict=True):
        assert block.startswith(f"event: {name}\ndata: ") and block.endswith(f"\nid: {number}"), block
    return found


def parse_frames(text: str) -> list[Frame]:
    """Return the events of a complete stream of AAP. Each has a name."""
    assert text.endswith("\n\n")
    found = parse(text)
    assert text.count("\nevent: ") + text.startswith("event: ") == len(found), text
    return [(event.event, json.loads(event.data)) for event in found]


def parse_output_events(text: str) -> list[dict[str, Any]]:
    """Return the data of the events of a complete stream of `/v1/execute`. None has a name."""
    assert text.endswith("\n\n")
    assert "event: " not in [line[:7] for line in text.split("\n")]
    return [event.json() for event in parse(text)]


def typed_events(text: str) -> list[Any]:
    """Return the data of the events of a complete stream of OpenAI's Responses. The last frame says that it is over."""
    assert text.endswith("data: [DONE]\n\n")
    return [*named_data(parse(text)[:-1])]


def chunks_of(text: str) -> list[Any]:
    """Return the data of the events of a complete stream of OpenAI's, whose last one is `[DONE]`."""
    assert text.endswith("\n\n")
    *events, last = parse(text)
    assert last.data == "[DONE]"
    return [event.json() for event in events]


def named_data(events: list[ServerSentEvent]) -> Iterator[Any]:
    """Yield the data of the events. The name of each is the type of its data."""
    for event in events:
        found = event.json()
        assert found["type"] == event.event
        yield found


async def arriving(response: httpx.Response) -> AsyncIterator[ServerSentEvent]:
    """Yield the events of a response as they arrive."""
    async for event in EventSource(response).aiter_sse():
        if event.data:
            yield event


class StreamParser:
    """Parses a stream while it is received: each event once."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[NumberedEvent]:
        """Return the events that this chunk completes."""
        complete, end, self._rest = (self._rest + chunk).rpartition(b"\n\n")
        return numbered(complete + end)
