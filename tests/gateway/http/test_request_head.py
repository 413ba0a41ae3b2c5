"""Limits of the heads of requests: size and time."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

from gateway.http import request_head
from gateway.http.request_head import HEAD_SECONDS, MAX_HEAD_BYTES, RequestHead
from gateway.http.server import web_socket
from tests.gateway.http.asgi_server import Receive, Scope, Send, answer, serving, url_of
from tests.support.daemon import KEY, Daemon, RunningGateway
from tests.support.manual_clock import ManualClock
from tests.support.raw_http import connect, send_raw
from tests.support.requests import create_session
from tests.support.waiting import wait_until

HEAD = b"GET /meta HTTP/1.1\r\nHost: localhost\r\n"
READ = 256 * 1024
"""The most that asyncio reads at once."""


def _text(got: bytes) -> str:
    head, _, body = got.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    return str(json.loads(body)["error"])


async def send_until_closed(writer: asyncio.StreamWriter, size: int) -> int:
    """Send bytes until the server closes the connection, which it does soon after it has rejected them. Return their number."""
    sent = 0
    with suppress(OSError):
        while sent < size:
            writer.write(b"x" * 4096)
            await writer.drain()
            # `drain` does not wait while the server reads as fast as this writes.
            await asyncio.sleep(0)
            sent += 4096
    return sent


async def test_an_endless_head_is_refused(daemon: Daemon) -> None:
    await daemon.start()
    for start in (b"GET /", HEAD + b"X: "):
        reader, writer = await connect(daemon.url)
        writer.write(start)
        sending = asyncio.create_task(send_until_closed(writer, 100 * READ))
        assert b" 431 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        assert str(MAX_HEAD_BYTES) in json.loads(await reader.read())["error"]
        writer.transport.abort()
        assert await asyncio.wait_for(sending, 60) < 100 * READ
    async with daemon.client() as client:
        assert (await client.get("/sessions", headers={"X": "x" * (MAX_HEAD_BYTES - 1000)})).status_code == 200


async def test_an_endless_head_of_a_second_request_is_refused(portico: RunningGateway) -> None:
    reader, writer = await connect(portico.url)
    writer.write(HEAD + b"\r\n")
    await reader.readuntil(b"]}")
    writer.write(HEAD + b"X: ")
    sending = asyncio.create_task(send_until_closed(writer, 100 * READ))
    assert b" 431 " in await asyncio.wait_for(reader.readline(), 60)
    writer.transport.abort()
    await sending


async def test_what_is_not_http_is_refused(portico: RunningGateway) -> None:
    for junk in (b"\x16\x03\x01\x02\x00\x01", b"junk\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n"):
        status, _ = await send_raw(portico.url, junk)
        assert status == 400, junk


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> bytearray:
    """All that connections have received and handled."""
    found, receive = bytearray(), RequestHead.data_received

    def data_received(protocol: RequestHead, data: bytes) -> None:
        receive(protocol, data)
        found.extend(data)

    monkeypatch.setattr(RequestHead, "data_received", data_received)
    return found


async def test_too_slow_headers_are_rejected(portico: RunningGateway, head_clock: ManualClock, handled: bytearray) -> None:
    for sent in (b"", b"\r\n", b"GET /meta HT", HEAD):
        sending = asyncio.create_task(send_raw(portico.url, sent))
        await wait_until(lambda sent=sent: handled.endswith(sent))
        await head_clock.expire(HEAD_SECONDS)
        status, got = await sending
        assert status == 408, sent
        assert "30 seconds" in _text(got), sent


async def test_too_slow_headers_of_a_second_request_are_rejected(portico: RunningGateway, head_clock: ManualClock) -> None:
    reader, writer = await connect(portico.url)
    writer.write(HEAD + b"\r\n")
    await reader.readuntil(b"]}")
    assert head_clock.waiting == 0
    writer.write(HEAD)
    await head_clock.expire(HEAD_SECONDS)
    assert b"408" in await asyncio.wait_for(reader.readline(), 60)
    writer.close()


async def test_the_connection_of_a_refused_head_is_closed(head_clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_head, "CLOSE_DELAY", 0.0)
    async with serving(answer) as server:
        reader, writer = await connect(url_of(server))
        await head_clock.expire(HEAD_SECONDS)
        assert b"408" in await asyncio.wait_for(reader.read(), 60)
        await wait_until(lambda: not server.server_state.connections)
        writer.close()


async def test_header_timeout_does_not_apply_to_bodies_and_idle_connections(
    portico: RunningGateway, head_clock: ManualClock, handled: bytearray
) -> None:
    """The time limit ends with the headers: a slow body and a pause between two requests are accepted."""
    reader, writer = await connect(portico.url)
    writer.write(HEAD + b"\r\n")
    assert b"200" in await reader.readline()
    await reader.readuntil(b"]}")
    await head_clock.advance(HEAD_SECONDS)
    body = json.dumps({"agent": {"name": "echo"}, "messages": [{"role": "user", "content": "x"}]}).encode()
    start = b"PUT /session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer %b\r\n"
    writer.write(start % KEY.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body[:10])
    await wait_until(lambda: handled.endswith(body[:10]))
    await head_clock.advance(HEAD_SECONDS)
    writer.write(body[10:])
    assert b"201" in await asyncio.wait_for(reader.readline(), 60)
    writer.close()
    assert (await create_session(portico.client, "echo"))["stopReason"] == "end_turn"


UPGRADE = (
    b"GET /acp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def test_an_open_websocket_has_no_limit_of_the_head(head_clock: ManualClock) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            return await answer(scope, receive, send)
        await receive()
        await send({"type": "websocket.accept"})
        await receive()

    async with serving(app, ws=web_socket) as server:
        reader, writer = await connect(url_of(server))
        for first in (True, False):
            if first:
                writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await reader.readuntil(b"\r\n\r\n/")
            else:
                writer.write(UPGRADE)
                assert b" 101 " in await asyncio.wait_for(reader.readline(), 60)
            assert head_clock.waiting == 0
        writer.close()
