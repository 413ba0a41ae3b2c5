"""A client of AAP for each base URL, so that one test asks them all. Tests speak version 1; each version is on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.gateway.requests import Frame, parse_frames, session_body, user_message, wait_until

Json = dict[str, Any]


@dataclass(frozen=True)
class BaseUrl:
    """One row of the table of base URLs."""

    url: str
    version: int

    def __str__(self) -> str:
        return self.url or "root"


BASE_URLS = (BaseUrl("", 1), BaseUrl("/aap/v1", 1), BaseUrl("/aap/v2", 2), BaseUrl("/aap/v3", 3))


@dataclass
class AapClient:
    """A client at one base URL. Bodies and answers are as of version 1, with every history in `look`."""

    http: httpx.AsyncClient
    base: BaseUrl

    @property
    def is_version_3(self) -> bool:
        return self.base.version == 3

    @property
    def schema(self) -> str:
        """The schema's name in a tool."""
        return "parameters" if self.is_version_3 else "inputSchema"

    def path(self, session: str = "") -> str:
        """The path of a session."""
        return f"{self.base.url}/{'sessions' if self.is_version_3 else 'session'}/{session}"

    def turns(self, session: str) -> str:
        """The path that takes its turns."""
        return self.path(session) + ("/turns" if self.is_version_3 else "")

    async def put(self, body: Json) -> httpx.Response:
        """Make a session and answer the last message: one request, in version 3 two."""
        if not self.is_version_3:
            return await self.http.put(self.base.url + "/session", json=self._out(body))
        made = await self.post_sessions(**{**body, "messages": body["messages"][:-1]})
        if made.status_code != 201:
            return made
        turn = {"messages": body["messages"][-1:], "stream": body.get("stream", "none")}
        answer = await self.post(made.json()["sessionId"], turn)
        answer.extensions["session"] = made.json()["sessionId"]
        return answer

    async def post_sessions(self, **body: Any) -> httpx.Response:
        """Version 3's way to make a session."""
        body.pop("stream", None)
        return await self.http.post(self.base.url + "/sessions", json=self._out(body))

    async def post(self, session: str, body: Json) -> httpx.Response:
        return await self.http.post(self.turns(session), json=self._out(body))

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
        """A new session's first turn, as JSON, with its id."""
        answer = await self.put(session_body(agent, *messages, **fields))
        assert answer.status_code == (200 if self.is_version_3 else 201), answer.text
        if self.is_version_3:
            assert "sessionId" not in answer.json()
            return {**answer.json(), "sessionId": answer.extensions["session"]}
        return dict(answer.json())

    async def create_streamed(self, agent: str = "script", *messages: Any, **fields: Any) -> tuple[str, list[Frame]]:
        """A new session, and the events of its first turn from `turn_start` on."""
        answer = await self.put(session_body(agent, *messages, **fields))
        assert answer.status_code == 200, answer.text
        events = parse_frames(answer.text)
        if self.is_version_3:
            return answer.extensions["session"], events
        assert events[0][0] == "session_start" and list(events[0][1]) == ["sessionId"]
        return events[0][1]["sessionId"], events[1:]

    async def send_turn(self, session: str, *messages: Any, **fields: Any) -> Json:
        """A turn of a session, as JSON."""
        received_text = [message if isinstance(message, dict) else user_message(message) for message in messages]
        answer = await self.post(session, {"messages": received_text, **fields})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def stream_turn(self, session: str, *messages: Any, **fields: Any) -> list[Frame]:
        """All events of a streamed turn."""
        answer = await self.post(session, {"messages": [*messages], **fields})
        assert answer.status_code == 200, answer.text
        return parse_frames(answer.text)

    async def get_session(self, session: str) -> Json:
        """The session with its full history."""
        answer = await self.get(session)
        assert answer.status_code == 200, answer.text
        found = self._in(answer.json())
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
        """A page of the list; its sessions are ids."""
        answer = await self.http.get(self.base.url + "/sessions", params=query)
        assert answer.status_code == 200, answer.text
        body = dict(answer.json())
        if self.base.version > 1:
            body["sessions"] = [one["sessionId"] for one in body["sessions"]]
        return body

    async def wait_until_idle(self, session: str) -> Json:
        """The session once its run is over."""

        async def over() -> Json | None:
            found = await self.get_session(session)
            return found if found["state"] == "idle" else None

        return dict(await wait_until(over))

    def _out(self, body: Json) -> Json:
        return {**body, "tools": self._tools(body["tools"], "inputSchema", self.schema)} if "tools" in body else body

    def _in(self, body: Json) -> Json:
        return {**body, "tools": self._tools(body["tools"], self.schema, "inputSchema")} if "tools" in body else body

    def _tools(self, tools: Any, old: str, new: str) -> Any:
        if not isinstance(tools, list):
            return tools
        assert all(new == old or new not in tool for tool in tools)
        return [{new if key == old else key: value for key, value in tool.items()} for tool in tools]
