"""A client of AAP and of `POST /v1/execute` for the tests of claude."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from httpx_sse import aconnect_sse

from tests.support.requests import with_extensions

Frames = list[tuple[str, dict[str, Any]]]


@dataclass
class AapSession:
    """An AAP session; `first` is the response that created it."""

    client: httpx.AsyncClient
    id: str
    first: dict[str, Any]

    async def send_turn(self, content: Any, *, stop: str = "end_turn", **settings: Any) -> str:
        """Send a user message in stream mode `none`; return the text of the turn, which must stop with the reason `stop`."""
        answer = await self.client.post(f"/session/{self.id}", json={"messages": [user(content)], **settings})
        assert answer.status_code == 200, answer.text
        assert answer.json()["stopReason"] == stop, answer.text
        return text_of(answer.json()["messages"])

    def open_stream(self, content: Any, mode: str = "delta", **settings: Any) -> Any:
        """Stream a turn: a context manager that yields its frames as they arrive."""
        return frames_of(self.client, "POST", f"/session/{self.id}", {"messages": [user(content)], "stream": mode, **settings})

    async def stream_turn(self, content: Any, mode: str = "delta", **settings: Any) -> Frames:
        async with self.open_stream(content, mode, **settings) as frames:
            return [frame async for frame in frames]

    async def info(self) -> dict[str, Any]:
        answer = await self.client.get(f"/session/{self.id}")
        assert answer.status_code == 200, answer.text
        return with_extensions(answer.json())

    async def history(self) -> list[dict[str, Any]]:
        return (await self.info())["history"]["full"]

    def with_client(self, client: httpx.AsyncClient) -> AapSession:
        """The same session over another HTTP client."""
        return AapSession(client, self.id, self.first)


async def create_session(client: httpx.AsyncClient, *messages: Any, stop: str = "end_turn", **options: str) -> AapSession:
    """Create a session of `claude` in stream mode `none`. A message that is a string is a user message."""
    sent = [message if isinstance(message, dict) else user(message) for message in messages]
    answer = await client.put("/session", json={"agent": {"name": "claude", "options": options}, "messages": sent})
    assert answer.status_code == 201, answer.text
    first = answer.json()
    assert first["stopReason"] == stop, first
    return AapSession(client, first["sessionId"], first)


@asynccontextmanager
async def frames_of(
    client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any]
) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
    """The frames of a streamed response, as (event, data)."""

    async def frames(source: Any) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        async with aclosing(source.aiter_sse()) as events:
            async for event in events:
                yield event.event, json.loads(event.data)

    async with aconnect_sse(client, method, path, json=body) as source, aclosing(frames(source)) as received:
        yield received


async def read_until_event(frames: AsyncIterator[tuple[str, dict[str, Any]]], name: str, kind: str | None = None) -> None:
    """Read frames until one has this event name, and this kind if one is given."""
    async for event, data in frames:
        if event == name and kind in (None, data.get("kind")):
            return
    raise AssertionError(f"no {kind or name} came")


async def execute(client: httpx.AsyncClient, task: str, **more: str) -> list[dict[str, Any]]:
    """Run a task by `POST /v1/execute`; return its events."""
    async with frames_of(client, "POST", "/v1/execute", {"driver": "claude", "task": task, **more}) as frames:
        events = [data async for _, data in frames]
    assert [event["kind"] for event in events].index("session_end") == len(events) - 1
    return events


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"] == kind]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def text_of(messages: list[dict[str, Any]]) -> str:
    """The text of the assistant in these messages."""
    texts = []
    for message in messages:
        if message["role"] == "assistant":
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            texts += [block["text"] for block in blocks if block["type"] == "text"]
    return "".join(texts)


def joined(frames: Frames, event: str, key: str) -> str:
    return "".join(data[key] for name, data in frames if name == event)
