"""Readers of AAP event streams with event ids."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from tests.support.sse import NumberedEvent, arriving, parse_events


@asynccontextmanager
async def follow_events(client: httpx.AsyncClient, session: str, **query: str) -> AsyncIterator[AsyncIterator[NumberedEvent]]:
    """Open the event stream of a session and yield its events."""

    async def events() -> AsyncIterator[NumberedEvent]:
        async for event in arriving(response):
            yield event.id, event.event, json.loads(event.data)

    async with client.stream("GET", f"/session/{session}/events", params=query) as response:
        assert response.status_code == 200, await response.aread()
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
