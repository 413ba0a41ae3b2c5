"""The MCP endpoint of the application-side tools: authentication, lifetime of tokens, and responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

from drivers.contract.driver_info import ToolSpec
from drivers.contract.tool_server import ToolRequest, ToolResponse, ToolServer
from drivers.runtime.clock import SYSTEM_CLOCK
from gateway.application_tools import server as mcp_server
from gateway.application_tools.host import McpHost
from gateway.application_tools.listener import Listener
from gateway.http import request_body, request_head
from gateway.observability.logs import bind_session_id, session_id
from gateway.security.redaction import Redactor, redactor_of_session
from tests.support.daemon import KEY
from tests.support.manual_clock import ManualClock
from tests.support.raw_http import send_raw
from tests.support.sse import arriving, parse
from tests.support.waiting import wait_until

TOOL = ToolSpec("look_up", "Looks up.", {"type": "object", "properties": {"n": {"type": "number"}}})
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.fixture
async def host(request: pytest.FixtureRequest) -> AsyncIterator[McpHost]:
    """For a test that has `clock`, it has that clock."""
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else SYSTEM_CLOCK
    found = McpHost(Redactor(), 10, clock)
    yield found
    await found.close()


@asynccontextmanager
async def authorized_client(server: ToolServer, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    authorization = {"Authorization": f"Bearer {server.token}"}
    async with httpx.AsyncClient(headers={**ACCEPT, **authorization, **headers}, timeout=30, verify=False) as client:
        yield client


async def initialize(client: httpx.AsyncClient, url: str) -> None:
    """Create an MCP session and add its id to the headers of the client."""
    answer = await client.post(url, json=INITIALIZE)
    assert answer.status_code == 200, answer.text
    client.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
    await client.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})


def call(number: int, name: str = "look_up", **meta: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": {"n": number}, "_meta": meta}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def messages(answer: httpx.Response) -> list[dict[str, Any]]:
    """Return the messages of a stream of server-sent events."""
    return [event.json() for event in parse(answer.text)]


async def post_initialize(url: str, **headers: str) -> tuple[int, str]:
    async with httpx.AsyncClient(headers={**ACCEPT, **headers}, verify=False, timeout=60) as client:
        answer = await client.post(url, json=INITIALIZE)
        return answer.status_code, answer.text


async def test_only_requests_with_the_token_are_accepted(host: McpHost) -> None:
    server = await host.open([TOOL])
    assert server.url.startswith("http://127.0.0.1:")
    wrong = ("", "Bearer", "Bearer x", f"Bearer {KEY}", f"Basic {server.token}", f"Bearer {server.token}x")
    for authorization in wrong:
        status, text = await post_initialize(server.url, Authorization=authorization)
        assert (status, server.token in text) == (401, False)
        assert "token" in json.loads(text)["error"]
    assert (await post_initialize(server.url))[0] == 401
    assert (await post_initialize(f"{server.url}?token={server.token}"))[0] == 401
    assert (await post_initialize(server.url, Authorization=f"Bearer {server.token}"))[0] == 200
    assert (await post_initialize(server.url.replace("/mcp", "/sessions"), Authorization=f"Bearer {server.token}"))[0] == 404


@pytest.mark.parametrize(
    ("header", "value"), [("Host", "evil.example"), ("Host", "127.0.0.1.evil.example:80"), ("Origin", "http://evil.example")]
)
async def test_foreign_host_and_origin_are_rejected(host: McpHost, header: str, value: str) -> None:
    server = await host.open([TOOL])
    status, _ = await post_initialize(server.url, Authorization=f"Bearer {server.token}", **{header: value})
    assert status in (403, 421)


async def test_token_is_invalid_after_its_server_is_closed(host: McpHost) -> None:
    first, second = await host.open([TOOL]), await host.open([TOOL])
    assert first.token != second.token and len(first.token) > 40
    async with authorized_client(first) as client:
        await initialize(client, first.url)
        await first.close()
        assert (await client.post(first.url, json={"jsonrpc": "2.0", "id": 2, "method": "tools/list"})).status_code == 401
    assert (await post_initialize(second.url, Authorization=f"Bearer {second.token}"))[0] == 200


async def test_token_gives_access_only_to_the_tools_of_its_session(host: McpHost) -> None:
    first, second = await host.open([TOOL]), await host.open([ToolSpec("other", "Another.", {})])
    called: list[str] = []
    for server in (first, second):
        server.listen(lambda request: called.append(request.name), lambda _: None)
    async with authorized_client(first) as client, authorized_client(second) as stranger:
        await initialize(client, first.url)
        # The second server does not know the MCP session of the first.
        session = {"mcp-session-id": client.headers["mcp-session-id"]}
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        assert (await stranger.post(second.url, json=listing, headers=session)).status_code == 404
        await initialize(stranger, second.url)
        (response,) = messages(await stranger.post(second.url, json=listing))
        assert [tool["name"] for tool in response["result"]["tools"]] == ["other"]
        (response,) = messages(await stranger.post(second.url, json=call(3)))
        assert response["result"]["isError"] is True and "Unknown tool 'look_up'" in response["result"]["content"][0]["text"]
    assert called == []


async def test_call_is_answered_with_the_first_result_of_the_application(host: McpHost, clock: ManualClock) -> None:
    server = await host.open([TOOL], ["theirs", "callId"])
    calls: asyncio.Queue[ToolRequest] = asyncio.Queue()
    server.listen(calls.put_nowait, lambda _: None)
    async with authorized_client(server) as client:
        await initialize(client, server.url)
        async with client.stream("POST", server.url, json=call(7, progressToken="p", callId="mine")) as answer:
            request = await asyncio.wait_for(calls.get(), 60)
            assert (request.name, request.input, request.call_id) == ("look_up", {"n": 7}, "mine")
            events = arriving(answer)
            # Progress notifications are sent while the call is pending.
            for progress in (1, 2):
                await clock.expire(mcp_server.PROGRESS_INTERVAL)
                while (message := (await anext(events)).json())["method"] != "notifications/progress":
                    pass
                assert message["params"]["progress"] == progress
            server.answer(ToolResponse(request.id, "seven"))
            server.answer(ToolResponse(request.id, "twice"))
            rest = [event.json() async for event in events]
    assert rest[-1]["result"]["content"] == [{"type": "text", "text": "seven"}]


async def test_pending_call_ends_when_the_server_is_closed(host: McpHost) -> None:
    server = await host.open([TOOL])
    called = asyncio.Event()
    server.listen(lambda _: called.set(), lambda _: None)
    async with authorized_client(server) as client:
        await initialize(client, server.url)
        waiting = asyncio.create_task(client.post(server.url, json=call(1)))
        await asyncio.wait_for(called.wait(), 60)
        await server.close()
        # The response is an error, or the connection is closed.
        with suppress(httpx.HTTPError):
            answer = await asyncio.wait_for(waiting, 60)
            assert all(message["result"]["isError"] for message in messages(answer))
        assert waiting.done()


async def test_token_is_redacted_until_its_server_is_closed() -> None:
    redactor = Redactor()
    host = McpHost(redactor, 10)
    server = await host.open([TOOL])
    assert redactor.clean(f"a {server.token} b") == "a *** b"
    await server.close()
    assert redactor.clean(server.token) == server.token
    await host.close()


async def test_listener_has_the_limits_of_the_main_port(host: McpHost, clock: ManualClock, head_clock: ManualClock) -> None:
    server = await host.open([TOOL])
    key = f"Authorization: Bearer {server.token}\r\n".encode()
    head = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: */*\r\n"
    huge = b"X: " + b"x" * request_head.MAX_HEAD_BYTES
    for authorization in (b"", key):
        assert (await send_raw(server.url, head + authorization + huge, huge, huge))[0] == 431
    # A client without a token is closed.
    status, got = await send_raw(server.url, head + b"Content-Length: 1\r\n\r\n{")
    assert (status, b"connection: close" in got.lower()) == (401, True)
    sending = asyncio.create_task(send_raw(server.url, head + key + b"Content-Length: 40000000\r\n\r\n{"))
    await clock.expire(request_body.BODY_SECONDS)
    await clock.advance(0.01)
    status, got = await sending
    assert (status, b"connection: close" in got.lower()) == (408, True), got
    assert (await send_raw(server.url, head + key + b"Content-Length: 400000000\r\nConnection: close\r\n\r\n"))[0] == 413
    for pieces in ([], [head]):
        await wait_until(lambda: head_clock.waiting == 0, "the connections before have ended")
        slow = asyncio.create_task(send_raw(server.url, *pieces))
        await head_clock.expire(request_head.HEAD_SECONDS)
        assert (await slow)[0] == 408


class App:
    """Records what the context of each request has of a session."""

    def __init__(self) -> None:
        self.seen: list[tuple[str | None, Redactor | None]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append((session_id.get(), redactor_of_session.get()))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def close(self) -> None: ...


async def test_requests_do_not_belong_to_the_session_that_started_the_listener() -> None:
    app: Any = App()

    async def start() -> Listener:
        bind_session_id("sess_1", Redactor())
        return await Listener.start(app, 10)

    listener = await asyncio.create_task(start())
    await send_raw(listener.url, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await listener.stop()
    assert app.seen == [(None, None)]
