"""The AAP client of all suites. It speaks version 3, or an earlier one; tests use the shapes of version 1 with each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.sse import Frame, parse_frames
from tests.support.waiting import wait_until

Json = dict[str, Any]


@dataclass(frozen=True)
class BaseUrl:
    """A base URL of AAP, and the protocol version it serves."""

    url: str
    version: int

    def __str__(self) -> str:
        return self.url or "root"


ROOT, V3 = BaseUrl("", 1), BaseUrl("/aap/v3", 3)
BASE_URLS = (ROOT, BaseUrl("/aap/v1", 1), BaseUrl("/aap/v2", 2), V3)


def user_message(content: Any = "hello") -> Json:
    """Return a user message."""
    return {"role": "user", "content": content}


def messages_of(*messages: Any) -> list[Json]:
    """Return messages. Strings become user messages."""
    return [message if isinstance(message, dict) else user_message(message) for message in messages]


def session_body(agent: str = "script", *messages: Any, options: dict[str, str] | None = None, **fields: Any) -> Json:
    """Return the body of `PUT /session`. Strings become user messages; `options` and `grants` go into `agent`."""
    config = {"name": agent, **({"options": options} if options else {})}
    if "grants" in fields:
        config["tools"] = fields.pop("grants")
    return {"agent": config, "messages": messages_of(*messages or ("hello",)), **fields}


def with_extensions(session: Json) -> Json:
    """Return a session with the fields of `x-portico` beside those of the protocol."""
    fields = dict(session)
    extensions = fields.pop("x-portico")
    assert not extensions.keys() & fields.keys()
    return fields | extensions


def text_of(messages: list[Json]) -> str:
    """Return the text of messages."""
    texts = []
    for message in messages:
        content = message["content"]
        texts += [content] if isinstance(content, str) else [block.get("text", "") for block in content]
    return "".join(texts)


def calls_of(answer: Json) -> list[Json]:
    """Return the tool calls of the last message of an answer."""
    return [block for block in answer["messages"][-1]["content"] if block["type"] == "tool_use"]


@dataclass
class AapClient:
    """A client of one base URL. Request and response bodies are those of version 1; `get_session` includes the full history."""

    http: httpx.AsyncClient
    base: BaseUrl = V3

    @property
    def is_version_3(self) -> bool:
        return self.base.version == 3

    @property
    def schema(self) -> str:
        """The name of the input schema in a tool."""
        return "parameters" if self.is_version_3 else "inputSchema"

    def path(self, session: str = "") -> str:
        """The path of a session."""
        return f"{self.base.url}/{'sessions' if self.is_version_3 else 'session'}/{session}"

    def turns(self, session: str) -> str:
        """The path to which the turns of a session are posted."""
        return self.path(session) + ("/turns" if self.is_version_3 else "")

    async def put(self, body: Json) -> httpx.Response:
        """Create a session and run a turn with the last message: one request, or two in version 3."""
        if not self.is_version_3:
            return await self.http.put(self.base.url + "/session", json=self._to_version(body))
        created = await self.post_sessions(**{**body, "messages": body["messages"][:-1]})
        if created.status_code != 201:
            return created
        turn = {"messages": body["messages"][-1:], "stream": body.get("stream", "none")}
        answer = await self.post(created.json()["sessionId"], turn)
        answer.extensions["session"] = created.json()["sessionId"]
        return answer

    async def post_sessions(self, **body: Any) -> httpx.Response:
        """Create a session without a turn (version 3)."""
        body.pop("stream", None)
        return await self.http.post(self.base.url + "/sessions", json=self._to_version(body))

    async def post(self, session: str, body: Json) -> httpx.Response:
        return await self.http.post(self.turns(session), json=self._to_version(body))

    @asynccontextmanager
    async def stream(self, session: str, *messages: Any) -> AsyncIterator[httpx.Response]:
        body = {"messages": [*messages], "stream": "delta"}
        async with self.http.stream("POST", self.turns(session), json=body) as answer:
            yield answer

    async def get(self, session: str) -> httpx.Response:
        return await self.http.get(self.path(session))

    async def delete(self, session: str) -> httpx.Response:
        return await self.http.delete(self.path(session))

    async def create_session(self, agent: str = "script", *messages: Any, **fields: Any) -> Json:
        """Create a session and return the result of its first turn, with the session id."""
        answer = await self.put(session_body(agent, *messages, **fields))
        assert answer.status_code == (200 if self.is_version_3 else 201), answer.text
        if self.is_version_3:
            assert "sessionId" not in answer.json()
            return {**answer.json(), "sessionId": answer.extensions["session"]}
        return dict(answer.json())

    async def create_streamed(self, agent: str = "script", *messages: Any, **fields: Any) -> tuple[str, list[Frame]]:
        """Create a session and return its id and the events of its first turn, from `turn_start` on."""
        answer = await self.put(session_body(agent, *messages, **fields))
        assert answer.status_code == 200, answer.text
        events = parse_frames(answer.text)
        if self.is_version_3:
            return answer.extensions["session"], events
        assert events[0][0] == "session_start" and list(events[0][1]) == ["sessionId"]
        return events[0][1]["sessionId"], events[1:]

    async def send_turn(self, session: str, *messages: Any, **fields: Any) -> Json:
        """Run a turn and return its result."""
        answer = await self.post(session, {"messages": messages_of(*messages), **fields})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def stream_turn(self, session: str, *messages: Any, **fields: Any) -> list[Frame]:
        """Run a streamed turn and return its events."""
        answer = await self.post(session, {"messages": [*messages], **fields})
        assert answer.status_code == 200, answer.text
        return parse_frames(answer.text)

    async def get_session(self, session: str) -> Json:
        """Return the session with its full history, and with the fields of `x-portico` beside those of the protocol."""
        answer = await self.get(session)
        assert answer.status_code == 200, answer.text
        found = with_extensions(self._from_version(answer.json()))
        assert ("history" in found) == (self.base.version == 1)
        return {**found, "history": {"full": found["history"]["full"] if "history" in found else await self.get_history(session)}}

    async def request_history(self, session: str, kind: str | None) -> httpx.Response:
        query = {} if kind is None else {"history" if self.base.version == 1 else "type": kind}
        return await self.http.get(self.path(session) + ("" if self.base.version == 1 else "/history"), params=query)

    async def get_history(self, session: str) -> list[Json]:
        answer = await self.request_history(session, "full")
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert list(body["history"]) == ["full"]
        assert self.base.version == 1 or list(body) == ["history"]
        return list(body["history"]["full"])

    async def list_sessions(self, **query: Any) -> Json:
        """Return a page of the session list; `sessions` are ids."""
        answer = await self.http.get(self.base.url + "/sessions", params=query)
        assert answer.status_code == 200, answer.text
        body = dict(answer.json())
        if self.base.version > 1:
            body["sessions"] = [one["sessionId"] for one in body["sessions"]]
        return body

    async def wait_until_idle(self, session: str) -> Json:
        """Wait until no run is active and return the session."""

        async def over() -> Json | None:
            found = await self.get_session(session)
            return found if found["state"] == "idle" else None

        return dict(await wait_until(over))

    def _to_version(self, body: Json) -> Json:
        return {**body, "tools": self._tools(body["tools"], "inputSchema", self.schema)} if "tools" in body else body

    def _from_version(self, body: Json) -> Json:
        return {**body, "tools": self._tools(body["tools"], self.schema, "inputSchema")} if "tools" in body else body

    def _tools(self, tools: Any, old: str, new: str) -> Any:
        if not isinstance(tools, list):
            return tools
        assert all(new == old or new not in tool for tool in tools)
        return [{new if key == old else key: value for key, value in tool.items()} for tool in tools]
