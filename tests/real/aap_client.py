"""The client of AAP and of `POST /v1/execute` for the tests with the real CLIs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.requests import execute as run_task
from tests.support.requests import get_history, get_session, send_turn
from tests.support.requests import user_message as user
from tests.support.sse import Frame, arriving

Json = dict[str, Any]


@dataclass
class AapSession:
    """An AAP session; `first` is the response that created it, `last` the newest one."""

    client: httpx.AsyncClient
    id: str
    first: Json
    last: Json = field(init=False)

    def __post_init__(self) -> None:
        self.last = self.first

    async def send(self, *messages: Any, **settings: Any) -> Json:
        """Send messages in stream mode `none`; return the response. A message that is a string is a user message."""
        self.last = await send_turn(self.client, self.id, *messages, **settings)
        return self.last

    async def send_turn(self, content: Any, *, stop: str = "end_turn", **settings: Any) -> str:
        """Send a user message; return the text of the turn, which must stop with the reason `stop`."""
        answer = await self.send(user(content), **settings)
        assert answer["stopReason"] == stop, answer
        return text_of(answer["messages"])

    def open_stream(self, content: Any, mode: str = "delta", **settings: Any) -> Any:
        """Stream a turn: a context manager that yields its frames as they arrive."""
        return frames_of(self.client, "POST", f"/session/{self.id}", {"messages": [user(content)], "stream": mode, **settings})

    async def stream_turn(self, content: Any, mode: str = "delta", **settings: Any) -> list[Frame]:
        async with self.open_stream(content, mode, **settings) as frames:
            return [frame async for frame in frames]

    async def permit(self, granted: bool) -> Json:
        """Grant or deny the pending call."""
        return await self.send(grant(self.pending_call()) if granted else deny(self.pending_call()))

    def pending_call(self) -> Json:
        """The call for which the newest turn waits."""
        assert self.last["stopReason"] == "tool_use", self.last
        return dict(self.last["messages"][-1]["content"][-1])

    def results(self) -> list[Any]:
        """The tool results in the newest response."""
        return [*results_of(self.last["messages"]).values()]

    async def info(self) -> Json:
        return await get_session(self.client, self.id)

    async def history(self) -> list[Json]:
        return await get_history(self.client, self.id)

    def with_client(self, client: httpx.AsyncClient) -> AapSession:
        """The same session over another HTTP client."""
        return AapSession(client, self.id, self.first)


async def create_session(
    client: httpx.AsyncClient,
    *messages: Any,
    agent: str = "claude",
    stop: str | None = "end_turn",
    own: Mapping[str, bool] | None = None,
    app: Sequence[Json] = (),
    **options: str,
) -> AapSession:
    """Create a session in stream mode `none`, whose first turn must stop with the reason `stop`, if one is given.

    A message that is a string is a user message. `own` are the agent's tools by name with their trust, `app` the application's.
    """
    sent = [message if isinstance(message, dict) else user(message) for message in messages]
    config: Json = {"name": agent, "options": options}
    if own is not None:
        config["tools"] = [{"name": name, "trust": trust} for name, trust in own.items()]
    answer = await client.put("/session", json={"agent": config, "messages": sent, **({"tools": list(app)} if app else {})})
    assert answer.status_code == 201, answer.text
    first = answer.json()
    assert stop in (None, first["stopReason"]), first
    return AapSession(client, first["sessionId"], first)


@asynccontextmanager
async def frames_of(client: httpx.AsyncClient, method: str, path: str, body: Json) -> AsyncIterator[AsyncIterator[Frame]]:
    """The frames of a streamed response, as they arrive."""
    async with client.stream(method, path, json=body) as response:
        assert response.status_code in (200, 201), await response.aread()
        yield ((event.event, event.json()) async for event in arriving(response))


async def read_until_event(frames: AsyncIterator[Frame], name: str, kind: str | None = None) -> None:
    """Read frames until one has this event name, and this kind if one is given."""
    async for event, data in frames:
        if event == name and kind in (None, data.get("kind")):
            return
    raise AssertionError(f"no {kind or name} came")


async def execute(client: httpx.AsyncClient, task: str, driver: str = "claude", **more: str) -> list[Json]:
    """Run a task by `POST /v1/execute`; return its events, of which the last one is its end."""
    events = await run_task(client, task, driver, **more)
    assert [event["kind"] for event in events].index("session_end") == len(events) - 1
    return events


def of_kind(events: list[Json], kind: str) -> list[Json]:
    return [event for event in events if event["kind"] == kind]


def text_of(messages: list[Json]) -> str:
    """The text of the assistant in these messages."""
    texts = []
    for message in messages:
        if message["role"] == "assistant":
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            texts += [block["text"] for block in blocks if block["type"] == "text"]
    return "".join(texts)


def joined(frames: list[Frame], event: str, key: str) -> str:
    return "".join(data[key] for name, data in frames if name == event)


def grant(call: Json) -> Json:
    return {"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": True}


def deny(call: Json, reason: str | None = None) -> Json:
    return {"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": False, "reason": reason}


def result(call: Json, content: Any) -> Json:
    return {"role": "tool", "toolCallId": call["toolCallId"], "content": content}


def calls_of(messages: list[Json]) -> list[Json]:
    """The tool_use blocks of these messages."""
    contents = [message["content"] for message in messages if message["role"] == "assistant"]
    return [block for content in contents if isinstance(content, list) for block in content if block["type"] == "tool_use"]


def results_of(messages: list[Json]) -> Json:
    """The tool results in these messages, by call."""
    return {message["toolCallId"]: message["content"] for message in messages if message["role"] == "tool"}
