"""Parsers and readers of AAP event streams with event ids."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from httpx_sse import aconnect_sse

NumberedEvent = tuple[str, str, Any]
"""An SSE event with its id: (id, name, data)."""


def parse_events(text: str) -> list[NumberedEvent]:
    """Return the complete events of a stream, whose last event may be cut off. Each must have an id."""
    found: list[NumberedEvent] = []
    for block in text.split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        name, data, number = block.split("\n")
        assert name.startswith("event: ") and data.startswith("data: ") and number.startswith("id: "), block
        found.append((number[4:], name[7:], json.loads(data[6:])))
    return found


@asynccontextmanager
async def follow_events(client: httpx.AsyncClient, session: str, **query: str) -> AsyncIterator[AsyncIterator[NumberedEvent]]:
    """Open the event stream of a session and yield its events."""

    async def events() -> AsyncIterator[NumberedEvent]:
        async for event in source.aiter_sse():
            yield event.id, event.event, json.loads(event.data)

    async with aconnect_sse(client, "GET", f"/session/{session}/events", params=query) as source:
        assert source.response.status_code == 200, await source.response.aread()
        yield events()


async def read_until(events: AsyncIterator[NumberedEvent], until: str) -> list[NumberedEvent]:
    """Read events up to the first with the name `until`, and return them."""
    found: list[NumberedEvent] = []
    async for event in events:
        found.append(event)
        if event[1] == until:
            return found
    raise AssertionError(f"the stream ended before {until}: {found}")


async def replay_events(client: httpx.AsyncClient, session: str, after: str = "0", **query: str) -> list[NumberedEvent]:
    """Return all events of an idle session after the id `after`."""
    found: list[NumberedEvent] = []
    while True:
        position = {"after": found[-1][0] if found else after}
        answer = await client.get(f"/session/{session}/events", params={**query, **position, "until": "turn_stop"})
        assert answer.status_code == 200, answer.text
        if not answer.text:
            return found
        more = parse_events(answer.text)
        if not more:
            return found
        found += more
