"""Behaviour of the streamable HTTP transport that the unmodified official clients need, tested with raw requests.

The clients differ from each other and from the draft (measured: npm 2.4.0, PyPI 0.12.1), so each test names the client that
needs the behaviour.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.gateway.protocols.acp.conftest import WriteScenario, set_options
from tests.gateway.protocols.acp.raw_connections import INITIALIZE, STREAM, rpc
from tests.support.acp_client import load, prompt
from tests.support.cluster import leave_out, placement
from tests.support.daemon import KEY, RunningGateway
from tests.support.sse import arriving

Json = dict[str, Any]
ASK = [{"tool_call": {"name": "write_note", "input": {"path": "a.md", "text": "A"}, "result": "written"}}, {"text": "done"}]
LATER = "sends a message when a stream was just closed, which a node behind a proxy notices later"


class Http:
    """One connection, with raw requests."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client, self._url = client, url
        self._connection: dict[str, str] = {}
        self._last = 0

    async def initialize(self) -> None:
        answer = await self._client.post(self._url, json=INITIALIZE)
        assert answer.status_code == 200, answer.text
        self._connection = {"Acp-Connection-Id": answer.headers["acp-connection-id"]}

    async def post(self, message: Json, session: str | None = None, status: int = 202) -> httpx.Response:
        answer = await self._client.post(self._url, json=message, headers=self._headers(session))
        assert answer.status_code == status, answer.text
        return answer

    async def ask(self, method: str, params: Json, session: str | None = None, status: int = 202) -> int:
        """Send a request; return its id."""
        self._last += 1
        await self.post(rpc(method, params, self._last), session, status)
        return self._last

    async def get(self, session: str | None = None) -> httpx.Response:
        """The response of a stream, which the caller must close."""
        request = self._client.build_request("GET", self._url, headers={**STREAM, **self._headers(session)})
        return await self._client.send(request, stream=True)

    @asynccontextmanager
    async def reading(self, session: str | None = None) -> AsyncIterator[AsyncIterator[Json]]:
        """The messages of a stream."""
        response = await self.get(session)
        while placement() and response.status_code == 409:
            # Behind a proxy the node notices later that the reader before has left.
            await response.aclose()
            response = await self.get(session)
        assert response.status_code == 200, await response.aread()
        try:
            yield _messages(response)
        finally:
            await response.aclose()

    def _headers(self, session: str | None) -> dict[str, str]:
        return {**self._connection, **({"Acp-Session-Id": session} if session else {})}


async def _messages(response: httpx.Response) -> AsyncIterator[Json]:
    async for event in arriving(response):
        yield event.json()


async def until(stream: AsyncIterator[Json], request_id: int) -> list[Json]:
    """The messages up to and including the response to this request."""
    found = []
    async with asyncio.timeout(60):
        async for message in stream:
            found.append(message)
            if message.get("id") == request_id and "method" not in message:
                return found
    raise AssertionError(f"no answer to {request_id}: {found}")


@pytest.fixture
async def connect(portico: RunningGateway) -> AsyncIterator[Callable[..., Any]]:
    """Opens connections to an agent, by default `echo`."""
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=30, verify=False) as client:

        async def made(agent: str = "echo") -> Http:
            http = Http(client, f"{portico.url}/acp/{agent}")
            await http.initialize()
            return http

        yield made


async def new(http: Http) -> str:
    async with http.reading() as own:
        answers = await until(own, await http.ask("session/new", {"cwd": ".", "mcpServers": []}))
    return str(answers[-1]["result"]["sessionId"])


async def prompted_session(http: Http, text: str) -> str:
    """A new session with one prompt."""
    session = await new(http)
    async with http.reading(session) as stream:
        await until(stream, await http.ask("session/prompt", prompt(session, text), session))
    return session


def texts(messages: list[Json]) -> list[str]:
    return [m["params"]["update"]["content"]["text"] for m in messages if "content" in m.get("params", {}).get("update", {})]


async def test_permission_requests_and_their_cancellation_share_a_stream(
    connect: Any, portico: RunningGateway, write_scenario: WriteScenario
) -> None:
    # Response is accepted without a session header. The Python client sends no session header with its responses.
    http = await connect("script")
    session = await new(http)
    await set_options(portico.gateway, session, scenario=write_scenario(ASK))
    async with http.reading(session) as stream:
        request_id = await http.ask("session/prompt", prompt(session, "go"), session)
        permission = await anext(m async for m in stream if m.get("method") == "session/request_permission")
        once = next(o["optionId"] for o in permission["params"]["options"] if o["kind"] == "allow_once")
        outcome = {"outcome": {"outcome": "selected", "optionId": once}}
        await http.post({"jsonrpc": "2.0", "id": permission["id"], "result": outcome})
        assert (await until(stream, request_id))[-1]["result"]["stopReason"] == "end_turn"
    # Permission request and its cancellation share a stream. On another stream the cancellation could be read before the
    # request, which would then stay open.
    http = await connect("script")
    session = await new(http)
    await set_options(portico.gateway, session, scenario=write_scenario(ASK))
    async with http.reading(session) as stream:
        request_id = await http.ask("session/prompt", prompt(session, "go"), session)
        permission = await anext(m async for m in stream if m.get("method") == "session/request_permission")
        await http.post({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}, session)
        reported = await until(stream, request_id)
    assert [m["params"] for m in reported if m.get("method") == "$/cancel_request"] == [{"requestId": permission["id"]}]


async def test_session_is_loaded_and_deleted_without_its_header(connect: Any) -> None:
    """The Python client sends no session header with these requests. A header with another session is refused."""
    for method in ("session/load", "session/resume", "session/delete"):
        session = await prompted_session(await connect(), "hello")
        http = await connect()
        async with http.reading() as own:
            assert "result" in (await until(own, await http.ask(method, load(session))))[-1], method
        await http.ask(method, load(session), session="another", status=400)


async def test_session_stream_may_be_opened_before_the_session(connect: Any) -> None:
    # Session stream may be opened before the session. The TypeScript client opens the stream first and ends its connection at
    # a 404, even if the session does not exist.
    session = await prompted_session(await connect(), "hello")
    http = await connect()
    for exists, name in ((True, session), (False, "no-such-session")):
        async with http.reading(name) as stream:
            answer = (await until(stream, await http.ask("session/load", load(name), name)))[-1]
            assert ("result" in answer) is exists
            assert exists or answer["error"]["code"] == -32002
    # Session errors are responses and not HTTP statuses. The TypeScript client treats 401, 403, 404 and 410 as the end of its
    # connection.
    for method in ("session/prompt", "session/set_mode", "session/close", "session/load", "session/resume"):
        http = await connect()
        params = {**load("no-such-session"), "prompt": [], "modeId": "ask"}
        async with http.reading("no-such-session") as stream:
            answers = await until(stream, await http.ask(method, params, "no-such-session"))
        assert answers[-1]["error"]["code"] == -32002, method


async def test_history_is_sent_on_the_stream_that_the_client_reads(connect: Any) -> None:
    # History and response use the open session stream.
    session = await prompted_session(await connect(), "hello")
    http = await connect()
    async with http.reading(session) as stream:
        answers = await until(stream, await http.ask("session/load", load(session), session))
    assert texts(answers) == ["hello", "hello"]
    # Session stream opened after the request gets the history. Two requests of one client may arrive in either order. The
    # header announces that the client reads the session stream.
    http = await connect()
    request_id = await http.ask("session/load", load(session), session)
    async with http.reading(session) as stream:
        assert texts(await until(stream, request_id)) == ["hello", "hello"]
    # Without a session header the connection stream gets the history. The Python client opens the session stream at the first
    # message of the session, in the middle of the history.
    http = await connect()
    async with http.reading() as own:
        request_id = await http.ask("session/load", load(session))
        async with http.reading(session) as stream:
            answers = await until(own, request_id)
            assert texts(answers) == ["hello", "hello"]
            assert answers[-1]["result"]["sessionId"] == session
            # Later messages are sent on the session stream.
            assert texts(await until(stream, await http.ask("session/prompt", prompt(session, "more"), session))) == ["more"]
    # Messages after the response are kept for the session stream.
    http = await connect()
    async with http.reading() as own:
        answer = (await until(own, await http.ask("session/resume", load(session))))[-1]
        assert answer["result"]["sessionId"] == session
        request_id = await http.ask("session/prompt", prompt(session, "more"), session)
        async with http.reading(session) as stream:
            assert texts(await until(stream, request_id)) == ["more"]


async def test_messages_of_a_new_session_are_kept_until_its_stream_opens(connect: Any) -> None:
    if placement():
        leave_out(LATER)
    http = await connect()
    session = await new(http)
    request_id = await http.ask("session/prompt", prompt(session, "early"), session)
    async with http.reading() as own:
        # A response of the connection is sent meanwhile, without messages of the session.
        assert len(await until(own, await http.ask("session/list", {}))) == 1
    async with http.reading(session) as stream:
        assert texts(await until(stream, request_id)) == ["early"]


async def test_loaded_session_accepts_requests(connect: Any) -> None:
    """The Python server refuses every later request for a loaded session."""
    session = await prompted_session(await connect(), "hello")
    http = await connect()
    async with http.reading() as own:
        await until(own, await http.ask("session/load", load(session)))
    async with http.reading(session) as stream:
        for method, params in (
            ("session/set_mode", {"sessionId": session, "modeId": "auto"}),
            ("session/prompt", prompt(session, "more")),
            ("session/close", {"sessionId": session}),
        ):
            assert "result" in (await until(stream, await http.ask(method, params, session)))[-1]
        # The stream ends with the session and can be opened again with it.
        assert [message async for message in stream] == []
    async with http.reading(session) as stream:
        await until(stream, await http.ask("session/load", load(session), session))


async def test_second_reader_of_a_stream_is_refused(connect: Any) -> None:
    """Two readers would divide the messages between them. The TypeScript client treats 409 as an error of this session only."""
    http = await connect()
    session = await new(http)
    for name in (None, session):
        async with http.reading(name):
            second = await http.get(name)
            assert second.status_code == 409
            assert "one GET at a time" in json.loads(await second.aread())["error"]
            await second.aclose()


async def test_reconnected_reader_gets_the_messages_sent_meanwhile(connect: Any) -> None:
    if placement():
        leave_out(LATER)
    http = await connect()
    session = await new(http)
    async with http.reading(session):
        pass
    request_id = await http.ask("session/prompt", prompt(session, "meanwhile"), session)
    async with asyncio.timeout(60):
        # Until the gateway has noticed the disconnect of the first reader.
        while (again := await http.get(session)).status_code == 409:
            await again.aclose()
    assert texts(await until(_messages(again), request_id)) == ["meanwhile"]
    await again.aclose()
