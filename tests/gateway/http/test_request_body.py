"""Limits of bodies: size and time; and idle connections end. Both on the main port."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.http import request_body
from gateway.http.request_body import BODY_SECONDS, DISCARDED, PAUSE
from gateway.server import http_daemon
from tests.gateway.http.asgi_server import MAX_BODY, answer, serving, url_of
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.raw_http import connect, send_raw

HEADERS = f"Host: localhost\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n".encode()
REQUESTS = [b"POST /v1/execute", b"POST /session/sess_x", b"PUT /session", b"POST /acp/echo", b"POST /aap/v3/sessions"]


async def test_slow_body_gets_408_and_its_connection_ends(portico: RunningGateway, clock: ManualClock) -> None:
    for request_line in REQUESTS:
        start = request_line + b" HTTP/1.1\r\n" + HEADERS + b"Content-Length: 20000000\r\n\r\n{"
        sending = asyncio.create_task(send_raw(portico.url, start, b" "))
        # What has arrived extends it by less than a millisecond.
        await clock.expire(BODY_SECONDS)
        await clock.advance(0.01)
        status, got = await sending
        assert status == 408, request_line
        assert b"connection: close" in got.lower() and b"did not arrive" in got, request_line


async def test_body_that_arrives_fast_enough_may_take_longer(
    portico: RunningGateway, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "MIN_RATE", 1)
    reader, writer = await connect(portico.url)
    body = b'{"driver": "echo", "task": "hello, this is a task"}'
    writer.write(b"POST /v1/execute HTTP/1.1\r\n" + HEADERS + b"Content-Length: %d\r\n\r\n" % len(body) + body[:-1])
    await clock.waited_for(BODY_SECONDS + len(body) - 1)
    await clock.advance(BODY_SECONDS + len(body) - 2)
    writer.write(body[-1:])
    assert b" 200 " in await asyncio.wait_for(reader.readline(), 60)
    writer.close()


async def test_idle_connection_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_daemon, "KEEP_ALIVE", 0.05)
    async with run_gateway(gateway_config(tmp_path)) as portico:
        status, _ = await send_raw(portico.url, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status == 200


async def test_a_refused_request_is_read_to_its_end(portico: RunningGateway) -> None:
    """A client may send the whole body before it reads, and uses the connection again."""
    for chunked in (False, True):
        data = b"x" * 1_000_000
        length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(data)
        reader, writer = await connect(portico.url)
        for _ in range(2):
            writer.write(b"PUT /session HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n" % length)
            writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if chunked else data)
            await writer.drain()
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            assert b" 401 " in head and b"connection: close" not in head.lower(), chunked
            await reader.readuntil(b"}")
        writer.close()


async def test_a_refused_client_that_waits_gets_the_response(portico: RunningGateway, clock: ManualClock) -> None:
    reader, writer = await connect(portico.url)
    writer.write(b"PUT /session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000000\r\n\r\n{")
    await clock.expire(PAUSE)
    got = await asyncio.wait_for(reader.read(), 60)
    assert b" 401 " in got and b"connection: close" in got.lower()
    writer.close()


async def test_a_refused_client_that_asks_before_it_sends_gets_the_response_at_once(portico: RunningGateway) -> None:
    reader, writer = await connect(portico.url)
    writer.write(b"PUT /session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000000\r\nExpect: 100-continue\r\n\r\n")
    got = await asyncio.wait_for(reader.read(), 60)
    assert got.startswith(b"HTTP/1.1 401 ") and b"connection: close" in got.lower()
    writer.close()


@pytest.mark.parametrize("chunked", [False, True])
async def test_no_more_than_twice_the_limit_is_read(chunked: bool) -> None:
    """Of a body that is announced with more, nothing is read. The clock stands still: no pause of the client ends the reading."""
    size = 100 * MAX_BODY
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size
    sent = 0
    async with serving(answer, clock=ManualClock()) as server:
        reader, writer = await connect(url_of(server))
        writer.write(b"PUT / HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n" % length + (b"%x\r\n" % size if chunked else b""))
        if chunked:
            while sent <= MAX_BODY * DISCARDED:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536
        got = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n/"), 30)
        assert b" 200 " in got and b"connection: close" in got.lower()
        writer.close()
