"""A client of AAP and of `POST /v1/execute` for the tests of codex."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from tests.real.aap_client import Frames, frames_of, text_of, user

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "inputSchema": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}


@dataclass
class AapSession:
    """An AAP session; `first` is the response that created it."""

    client: httpx.AsyncClient
    id: str
    first: dict[str, Any]

    async def send(self, *messages: Any, **settings: Any) -> dict[str, Any]:
        """Send messages in stream mode `none`; return the response. A message that is a string is a user message."""
        sent = [user(message) if isinstance(message, str) else message for message in messages]
        answer = await self.client.post(f"/session/{self.id}", json={"messages": sent, **settings})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def send_turn(self, content: Any, *, stop: str = "end_turn", **settings: Any) -> str:
        """Send a user message; return the text of the turn, which must stop with the reason `stop`."""
        answer = await self.send(user(content), **settings)
        assert answer["stopReason"] == stop, answer
        return text_of(answer["messages"])

    def open_stream(self, content: Any, mode: str = "delta") -> Any:
        """Stream a turn: a context manager that yields its frames as they arrive."""
        return frames_of(self.client, "POST", f"/session/{self.id}", {"messages": [user(content)], "stream": mode})

    async def stream_turn(self, content: Any, mode: str = "delta") -> Frames:
        async with self.open_stream(content, mode) as frames:
            return [frame async for frame in frames]

    async def history(self) -> list[dict[str, Any]]:
        answer = await self.client.get(f"/session/{self.id}")
        assert answer.status_code == 200, answer.text
        return answer.json()["history"]["full"]

    def with_client(self, client: httpx.AsyncClient) -> AapSession:
        """The same session over another HTTP client."""
        return AapSession(client, self.id, self.first)


async def create_session(
    client: httpx.AsyncClient, *messages: Any, stop: str = "end_turn", own: Any = None, app: Any = None, **options: str
) -> AapSession:
    """Create a session in stream mode `none`. `own` are the agent's tools by name with their trust, `app` the application's."""
    sent = [message if isinstance(message, dict) else user(message) for message in messages]
    agent: dict[str, Any] = {"name": "codex", "options": options}
    if own is not None:
        agent["tools"] = [{"name": name, "trust": trust} for name, trust in own.items()]
    body = {"agent": agent, "messages": sent, **({"tools": app} if app else {})}
    answer = await client.put("/session", json=body)
    assert answer.status_code == 201, answer.text
    first = answer.json()
    assert first["stopReason"] == stop, first
    return AapSession(client, first["sessionId"], first)


async def execute(client: httpx.AsyncClient, task: str, **more: str) -> list[dict[str, Any]]:
    """Run a task by `POST /v1/execute`; return its events."""
    async with frames_of(client, "POST", "/v1/execute", {"driver": "codex", "task": task, **more}) as frames:
        events = [data async for _, data in frames]
    assert [event["kind"] for event in events].index("session_end") == len(events) - 1
    return events


def grant(call: dict[str, Any]) -> dict[str, Any]:
    return {"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": True}


def deny(call: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": False, "reason": reason}


def result(call: dict[str, Any], content: Any) -> dict[str, Any]:
    return {"role": "tool", "toolCallId": call["toolCallId"], "content": content}


def calls_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tool_use blocks of these messages."""
    contents = [message["content"] for message in messages if message["role"] == "assistant"]
    return [block for content in contents if isinstance(content, list) for block in content if block["type"] == "tool_use"]


def results_of(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The tool results in these messages, by call."""
    return {message["toolCallId"]: message["content"] for message in messages if message["role"] == "tool"}


def message_texts(body: dict[str, Any], role: str = "user") -> list[str]:
    """The texts of one role in a model request, in order, without those that the CLI adds."""
    parts = [part for item in body["input"] if item.get("role") == role for part in item["content"]]
    return [part["text"] for part in parts if "text" in part and not part["text"].startswith("<environment_context>")]


def outputs(body: dict[str, Any]) -> list[Any]:
    """The tool outputs in a model request, in order."""
    return [item["output"] for item in body["input"] if item.get("type", "").endswith("call_output")]
