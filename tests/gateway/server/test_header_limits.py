"""Limits of request headers: size, number and time; and data that is not HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from contextlib import suppress
from typing import Any

import pytest

from gateway import connection_limits as limits
from gateway.asgi_extensions import WATCH_DISCONNECT
from tests.daemon import KEY, Daemon, RunningGateway
from tests.gateway.raw_http import connect, send_raw
from tests.gateway.requests import create_session
from tests.gateway.server.asgi_server import Receive, Scope, Send, answer, begin, body, serving
from tests.manual_clock import ManualClock
from tests.waiting import wait_until

HEAD = b"GET /meta HTTP/1.1\r\nHost: localhost\r\n"


def _text(got: bytes) -> str:
    head, _, body = got.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    return str(json.loads(body)["error"])


async def test_too_large_headers_are_rejected(daemon: Daemon) -> None:
    await daemon.start()
    size, count = limits.MAX_HEAD_BYTES, limits.MAX_HEADERS
    for pieces in (
        [HEAD, b"X: %b\r\n\r\n" % (b"x" * size)],
        [HEAD, b"X: %b\r\n\r\n" % (b"x" * 3 * size)],
        [HEAD, b"X: " + b"x" * size, b"x" * size],
        [HEAD, b"".join(b"X%d: x\r\n" % n for n in range(count)), b"\r\n"],
        [HEAD, b"".join(b"X%d: %b\r\n" % (n, b"x" * (size // 50)) for n in range(60)), b"\r\n"],
        [b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"x" * size)],
        [b"GET /" + b"x" * size, b"x" * size],
    ):
        status, got = await send_raw(daemon.url, *pieces)
        assert status == 431, got
        assert str(size) in _text(got)
    many = b"".join(b"X%d: x\r\n" % n for n in range(count - 3))
    status, got = await send_raw(daemon.url, HEAD, many, b"Connection: close\r\n\r\n")
    assert (status, b"agents" in got) == (200, True)
    async with daemon.client() as client:
        assert (await client.get("/sessions", headers={"X": "x" * (size - 1000)})).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_the_rest_of_the_body_of_a_refused_request_is_no_header(portico: RunningGateway, chunked: bool) -> None:
    """A client may read the response before it has sent the body, and uses the connection again."""
    rest = b"x" * 3 * limits.MAX_HEAD_BYTES
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(rest)
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest) if chunked else rest
    reader, writer = await connect(portico.url)
    for _ in range(2):
        writer.write(b"PUT /session HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n" % length)
        assert b" 401 " in await asyncio.wait_for(reader.readline(), 60)
        await reader.readuntil(b"}")
        for start in range(0, len(body), limits.MAX_HEAD_BYTES):
            writer.write(body[start : start + limits.MAX_HEAD_BYTES])
            await writer.drain()
    writer.write(HEAD + b"\r\n")
    assert b" 200 " in await asyncio.wait_for(reader.readline(), 60)
    await reader.readuntil(b"]}")
    writer.write(HEAD + b"X: ")
    for _ in range(2):
        writer.write(rest[: limits.MAX_HEAD_BYTES])
    assert b" 431 " in await asyncio.wait_for(reader.readline(), 60), "an endless header is counted as before"
    writer.close()


@pytest.mark.parametrize("refused", [True, False])
async def test_an_endless_trailer_is_rejected(refused: bool) -> None:
    """The parser keeps an incomplete line in memory, and copies it for each piece that is received."""
    ends = list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if refused:
            await begin(send, (b"content-length", b"0"))
            return await body(send, b"", more=False)
        while (message := await receive())["type"] == "http.request" and message["more_body"]:
            pass
        ends.append(message["type"])

    async with serving(app) as server:
        reader, writer = await connect(server.url)
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        if refused:
            assert b" 200 " in (await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"4\r\nbody\r\n0\r\nX: ")
        sending = asyncio.create_task(send_until_closed(writer, 100 * limits.MAX_HEAD_BYTES))
        assert b" 431 " in await asyncio.wait_for(reader.readline(), 60)
        await asyncio.wait_for(sending, 60)
        writer.close()
        if not refused:
            await wait_until(lambda: ends == ["http.disconnect"])


async def send_until_closed(writer: asyncio.StreamWriter, size: int) -> None:
    """Send bytes until the server closes the connection, which it does soon after it has rejected them."""
    with suppress(OSError):
        for _ in range(size // 4096):
            writer.write(b"x" * 4096)
            await writer.drain()


async def test_trailers_are_no_headers_and_are_limited_with_them() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            pass
        names = b",".join(name for name, _ in scope["headers"])
        await begin(send, (b"content-length", b"%d" % len(names)))
        await body(send, names, more=False)

    async with serving(app) as server:
        post = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n%b\r\n"
        reader, writer = await connect(server.url)
        writer.write(post % b"Authorization: Bearer x\r\n")
        names = b"host,transfer-encoding"
        assert b"content-length: %d\r\n" % len(names) in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(len(names)) == names
        writer.write(post % b"".join(b"X%d: %b\r\n" % (n, b"x" * 1000) for n in range(limits.MAX_HEAD_BYTES // 1000 + 1)))
        assert b" 431 " in await reader.readline()
        writer.close()


async def test_an_endless_header_of_a_pipelined_request_is_rejected() -> None:
    ends = list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        ends.append((await receive())["type"])

    async with serving(app) as server:
        reader, writer = await connect(server.url)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await wait_until(lambda: bool(server.connections and server.connections[0].cycle))
        writer.write(HEAD + b"X: ")
        sending = asyncio.create_task(send_until_closed(writer, 100 * limits.MAX_HEAD_BYTES))
        assert b" 431 " in await asyncio.wait_for(reader.readline(), 60)
        await asyncio.wait_for(sending, 60)
        writer.close()
        await wait_until(lambda: ends == ["http.disconnect"])


@pytest.mark.parametrize("begins", [True, False])
async def test_invalid_bytes_behind_pipelined_requests_end_the_first_one(begins: bool) -> None:
    """uvicorn knows the last request of a connection only."""
    ends, handled = list[str](), list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        handled.append(scope["path"])
        if begins:
            await begin(send)
            await body(send, b"first")
        await receive()
        ends.append((await receive())["type"])
        # Nothing is written, and nothing fails.
        await (body(send, b"late") if begins else begin(send))

    async with serving(app) as server:
        pipelined = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n"
        reader, writer = await connect(server.url)
        writer.write(pipelined % b"one")
        if begins:
            await reader.readuntil(b"first\r\n")
        writer.write(pipelined % b"two" + b"junk\0\r\n\r\n")
        got = await asyncio.wait_for(reader.read(), 60)
        assert got == b"" if begins else got.startswith(b"HTTP/1.1 400 ")
        await wait_until(lambda: ends == ["http.disconnect"])
        assert handled == ["/one"]
        writer.close()
        # Soon: nothing is read any more, so that the end of the client is not noticed.
        await wait_until(lambda: server.connections[0].transport.get_extra_info("socket").fileno() < 0)


async def test_only_so_many_requests_of_a_connection_wait_for_their_responses() -> None:
    """uvicorn goes on reading after each response, however many requests wait."""
    limit, pause = limits.MAX_PIPELINED, asyncio.Event()
    ends, handled = list[str](), list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        handled.append(scope["path"])
        if scope["path"] == "/wait":
            await receive()
            ends.append((await receive())["type"])
            return
        await pause.wait()
        await answer(scope, receive, send)

    def requests(count: int) -> bytes:
        return b"".join(b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % n for n in range(count))

    async with serving(app) as server:
        reader, writer = await connect(server.url)
        for _ in range(2):
            handled.clear()
            pause.clear()
            writer.write(requests(limit))
            await wait_until(lambda: bool(handled))
            pause.set()
            for n in range(limit):
                assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).startswith(b"HTTP/1.1 200 ")
                path = f"/{n}".encode()
                assert await reader.readexactly(len(path)) == path
            assert handled == [f"/{n}" for n in range(limit)]
        handled.clear()
        writer.write(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n" + requests(limit))
        got = await asyncio.wait_for(reader.read(), 60)
        assert got.startswith(b"HTTP/1.1 400 ") and str(limit) in _text(got)
        await wait_until(lambda: ends == ["http.disconnect"])
        assert handled == ["/wait"]
        writer.close()
        await wait_until(lambda: server.connections[0].transport.get_extra_info("socket").fileno() < 0)


async def test_a_client_that_is_gone_ends_the_first_of_its_pipelined_requests() -> None:
    ends, handled = list[str](), list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        handled.append(scope["path"])
        await begin(send)
        await body(send, b"first")
        await receive()
        ends.append((await receive())["type"])

    async with serving(app) as server:
        reader, writer = await connect(server.url)
        writer.write(b"GET /one HTTP/1.1\r\nHost: localhost\r\n\r\nGET /two HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"first\r\n")
        # Without a FIN, which could be that of a client that waits for its responses.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await wait_until(lambda: ends == ["http.disconnect"])
        assert handled == ["/one"]


@pytest.mark.parametrize("junk", [b"\x16\x03\x01\x02\x00\x01", b"junk\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n"])
async def test_invalid_http_gets_a_json_error(daemon: Daemon, junk: bytes) -> None:
    await daemon.start()
    status, got = await send_raw(daemon.url, junk)
    assert status == 400
    assert "HTTP" in _text(got)


async def test_invalid_bytes_behind_a_request_get_one_response(daemon: Daemon) -> None:
    await daemon.start()
    status, got = await send_raw(daemon.url, HEAD + b"\r\njunk\r\n\r\n")
    assert (status, got.count(b"HTTP/1.1")) == (400, 1), got
    assert await daemon.stop() == 0
    assert b"Traceback" not in daemon.stderr, daemon.stderr


async def test_invalid_bytes_behind_a_request_whose_response_has_begun_end_the_connection(portico: RunningGateway) -> None:
    session = (await create_session(portico.client, "echo"))["sessionId"]
    reader, writer = await connect(portico.url)
    target = f"GET /session/{session}/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n"
    writer.write(target.encode())
    assert b"200" in await reader.readline()
    writer.write(b"junk\r\n\r\n")
    assert b"400" not in await asyncio.wait_for(reader.read(), 60)
    writer.close()


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> bytearray:
    """All that connections have received and handled."""
    found, receive = bytearray(), limits.HeaderLimitProtocol.data_received

    def data_received(protocol: limits.HeaderLimitProtocol, data: bytes) -> None:
        receive(protocol, data)
        found.extend(data)

    monkeypatch.setattr(limits.HeaderLimitProtocol, "data_received", data_received)
    return found


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET /meta HT", HEAD])
async def test_too_slow_headers_are_rejected(
    portico: RunningGateway, head_clock: ManualClock, handled: bytearray, sent: bytes
) -> None:
    sending = asyncio.create_task(send_raw(portico.url, sent))
    await wait_until(lambda: handled == sent)
    await head_clock.expire(limits.HEAD_SECONDS)
    status, got = await sending
    assert status == 408
    assert "30 seconds" in _text(got)


async def test_too_slow_headers_of_a_second_request_are_rejected(portico: RunningGateway, head_clock: ManualClock) -> None:
    reader, writer = await connect(portico.url)
    writer.write(HEAD + b"\r\n")
    await reader.readuntil(b"]}")
    assert head_clock.waiting == 0
    writer.write(HEAD)
    await head_clock.expire(limits.HEAD_SECONDS)
    assert b"408" in await asyncio.wait_for(reader.readline(), 60)
    writer.close()


async def test_header_timeout_does_not_apply_to_bodies_and_idle_connections(
    portico: RunningGateway, head_clock: ManualClock, handled: bytearray
) -> None:
    """The time limit ends with the headers: a slow body and a pause between two requests are accepted."""
    reader, writer = await connect(portico.url)
    writer.write(HEAD + b"\r\n")
    assert b"200" in await reader.readline()
    await reader.readuntil(b"]}")
    await head_clock.advance(limits.HEAD_SECONDS)
    body = json.dumps({"agent": {"name": "echo"}, "messages": [{"role": "user", "content": "x"}]}).encode()
    start = b"PUT /session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer %b\r\n"
    writer.write(start % KEY.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body[:10])
    await wait_until(lambda: handled.endswith(body[:10]))
    await head_clock.advance(limits.HEAD_SECONDS)
    writer.write(body[10:])
    assert b"201" in await asyncio.wait_for(reader.readline(), 60)
    writer.close()
    assert (await create_session(portico.client, "echo"))["stopReason"] == "end_turn"


async def test_a_connection_is_idle_after_the_rest_of_the_body_of_a_refused_request(head_clock: ManualClock) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await begin(send, (b"content-length", b"0"))
        await body(send, b"", more=False)

    async with serving(app, timeout_keep_alive=600) as server:
        reader, writer = await connect(server.url)
        for _ in range(2):
            writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n")
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            writer.write(b"bo")
            await wait_until(lambda: server.connections[0]._head_timer is not None)
            writer.write(b"dy")
            await wait_until(lambda: server.connections[0]._head_timer is None)
            assert server.connections[0].timeout_keep_alive_task is not None
        # It is closed as any other one that is idle: without an answer that nobody asked for.
        await head_clock.advance(limits.HEAD_SECONDS)
        assert not server.connections[0].transport.is_closing()
        server.connections[0].timeout_keep_alive_handler()
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()


# -- requests that wait for each other ----------------------------------------------------------------------------------------

UPGRADE = (
    b"GET /acp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.mark.parametrize("begins", [True, False])
async def test_a_websocket_behind_an_unanswered_request_is_rejected(begins: bool) -> None:
    """uvicorn would write the response between the frames of the WebSocket, and never tell the application of a disconnect."""
    ends, kinds = list[str](), list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        kinds.append(scope["type"])
        if begins:
            await begin(send)
            await body(send, b"first")
        await receive()
        ends.append((await receive())["type"])

    async with serving(app) as server:
        reader, writer = await connect(server.url)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        if begins:
            await reader.readuntil(b"first\r\n")
        writer.write(UPGRADE)
        got = await asyncio.wait_for(reader.read(), 60)
        assert got == b"" if begins else "use another connection" in _text(got)
        await wait_until(lambda: ends == ["http.disconnect"])
        assert kinds == ["http"]
        writer.close()


async def test_a_websocket_behind_an_answered_request_is_accepted() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            return await answer(scope, receive, send)
        await receive()
        await send({"type": "websocket.accept"})
        await receive()

    async with serving(app) as server:
        reader, writer = await connect(server.url)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n/")
        writer.write(UPGRADE)
        assert b" 101 " in await asyncio.wait_for(reader.readline(), 60)
        writer.close()


async def test_the_client_of_the_first_of_two_requests_is_looked_for_within_its_own_response() -> None:
    """A client that has closed its side may be gone: what it is sent to find out must fit the response that is being sent."""
    writing = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/two":
            return await answer(scope, receive, send)
        scope["extensions"][WATCH_DISCONNECT]()
        # The server reads no more behind a second request until the first one is read.
        await receive()
        await begin(send)
        await body(send, b"first")
        await writing.wait()
        await body(send, b"last", more=False)

    async with serving(app) as server:
        reader, writer = await connect(server.url)
        writer.write(b"GET /one HTTP/1.1\r\nHost: localhost\r\n\r\nGET /two HTTP/1.1\r\nHost: localhost\r\n\r\n")
        writer.write_eof()
        await reader.readuntil(b"first\r\n")
        probes = list[float]()
        connection = server.connections[0]
        probe, later = connection._probe, connection.loop.call_later

        def call_later(delay: float, function: Any, *args: Any) -> asyncio.TimerHandle:
            if function == probe:
                probes.append(delay)
            return later(delay, function, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection.loop, "call_later", call_later)
            await wait_until(lambda: len(probes) >= 2)
        writing.set()
        rest = await asyncio.wait_for(reader.read(), 60)
        assert rest.startswith(b"4\r\nlast\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n") and rest.endswith(b"/two"), rest
        writer.close()


async def test_a_request_of_another_node_may_have_some_headers_more() -> None:
    """Those that it adds to the headers of its client, who may have sent as many as are admitted."""
    count = limits.MAX_HEADERS - 2
    many = b"".join(b"X%d: x\r\n" % n for n in range(count)) + b"Connection: close\r\n"
    signature = b"portico-node: %b\r\n" % (b"x" * 250)
    more = [b"Y%d: y\r\n" % n for n in range(limits.NODE_HEADERS)]
    async with serving(answer) as server:
        for extra, expected in (
            (b"", 200),
            (b"".join(more), 431),
            (signature, 200),
            (signature + b"".join(more[1:]), 200),
            (signature + b"".join(more), 431),
        ):
            status, got = await send_raw(server.url, b"GET / HTTP/1.1\r\nHost: localhost\r\n", extra, many, b"\r\n")
            assert status == expected, got
