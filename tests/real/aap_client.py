"""A client of both protocols, as small as the tests need it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from httpx_sse import aconnect_sse

Frames = list[tuple[str, dict[str, Any]]]


@dataclass
class AapSession:
    """One AAP session."""

    client: httpx.AsyncClient
    id: str
    first: dict[str, Any]

    async def send_turn(self, content: Any, *, stop: str = "end_turn", **settings: Any) -> str:
        """One turn, by `none`; its text, once its stop reason is the one that is expected."""
        answer = await self.client.post(f"/session/{self.id}", json={"messages": [user(content)], **settings})
        assert answer.status_code == 200, answer.text
        assert answer.json()["stopReason"] == stop, answer.text
        return text_of(answer.json()["messages"])

    def open_stream(self, content: Any, mode: str = "delta") -> Any:
        """One turn, streamed: a context that gives its frames as they come."""
        return frames_of(self.client, "POST", f"/session/{self.id}", {"messages": [user(content)], "stream": mode})

    async def stream_turn(self, content: Any, mode: str = "delta") -> Frames:
        async with self.open_stream(content, mode) as frames:
            return [frame async for frame in frames]

    async def info(self) -> dict[str, Any]:
        answer = await self.client.get(f"/session/{self.id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def get_history(self) -> list[dict[str, Any]]:
        return (await self.info())["history"]["full"]

    def with_client(self, client: httpx.AsyncClient) -> AapSession:
        """The same session by another connection."""
        return AapSession(client, self.id, self.first)


async def create_session(client: httpx.AsyncClient, *messages: Any, stop: str = "end_turn", **options: str) -> AapSession:
    """A new session of `claude` by `none`; messages as text are the user's."""
    asked = [message if isinstance(message, dict) else user(message) for message in messages]
    answer = await client.put("/session", json={"agent": {"name": "claude", "options": options}, "messages": asked})
    assert answer.status_code == 201, answer.text
    first = answer.json()
    assert first["stopReason"] == stop, first
    return AapSession(client, first["sessionId"], first)


@asynccontextmanager
async def frames_of(
    client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any]
) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
    """The frames of a streamed answer, as (event, data)."""

    async def frames(source: Any) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        async with aclosing(source.aiter_sse()) as events:
            async for event in events:
                yield event.event, json.loads(event.data)

    async with aconnect_sse(client, method, path, json=body) as source, aclosing(frames(source)) as shown:
        yield shown


async def read_until_event(frames: AsyncIterator[tuple[str, dict[str, Any]]], name: str, kind: str | None = None) -> None:
    """Read the frames up to the first of this name, and of this kind if one is given."""
    async for event, data in frames:
        if event == name and kind in (None, data.get("kind")):
            return
    raise AssertionError(f"no {kind or name} came")


async def execute(client: httpx.AsyncClient, task: str, **more: str) -> list[dict[str, Any]]:
    """A task by `POST /v1/execute`: its events."""
    async with frames_of(client, "POST", "/v1/execute", {"driver": "claude", "task": task, **more}) as frames:
        events = [data async for _, data in frames]
    assert [event["kind"] for event in events].index("session_end") == len(events) - 1
    return events


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"] == kind]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def text_of(messages: list[dict[str, Any]]) -> str:
    """What the assistant says in these messages."""
    texts = []
    for message in messages:
        if message["role"] == "assistant":
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            texts += [block["text"] for block in blocks if block["type"] == "text"]
    return "".join(texts)


def joined(frames: Frames, event: str, key: str) -> str:
    return "".join(data[key] for name, data in frames if name == event)
