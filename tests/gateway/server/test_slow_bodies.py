"""Slow bodies and idle connections end, on the main port."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway import body_limit, connection_limits
from gateway.body_limit import BODY_SECONDS
from gateway.server import daemon
from tests.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.gateway.raw_http import connect, send_raw
from tests.manual_clock import ManualClock

HEADERS = f"Host: localhost\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n".encode()
REQUESTS = [b"POST /v1/execute", b"POST /session/sess_x", b"PUT /session", b"POST /acp/echo", b"POST /aap/v3/sessions"]


@pytest.mark.parametrize("request_line", REQUESTS)
async def test_slow_body_gets_408_and_its_connection_ends(
    portico: RunningGateway, clock: ManualClock, request_line: bytes
) -> None:
    start = request_line + b" HTTP/1.1\r\n" + HEADERS + b"Content-Length: 20000000\r\n\r\n{"
    sending = asyncio.create_task(send_raw(portico.url, start, b" "))
    # What has arrived extends it by less than a millisecond.
    await clock.expire(BODY_SECONDS)
    await clock.advance(0.01)
    status, got = await sending
    assert status == 408
    assert b"connection: close" in got.lower() and b"did not arrive" in got


async def test_body_that_arrives_fast_enough_may_take_longer(
    portico: RunningGateway, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_limit, "MIN_RATE", 1)
    reader, writer = await connect(portico.url)
    body = b'{"driver": "echo", "task": "hello, this is a task"}'
    writer.write(b"POST /v1/execute HTTP/1.1\r\n" + HEADERS + b"Content-Length: %d\r\n\r\n" % len(body) + body[:-1])
    await clock.waited_for(BODY_SECONDS + len(body) - 1)
    await clock.advance(BODY_SECONDS + len(body) - 2)
    writer.write(body[-1:])
    assert b" 200 " in await asyncio.wait_for(reader.readline(), 60)
    writer.close()


async def test_idle_connection_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "KEEP_ALIVE", 0.05)
    async with run_gateway(gateway_config(tmp_path)) as portico:
        status, _ = await send_raw(portico.url, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status == 200


async def test_rest_of_the_body_of_a_refused_request_ends(
    portico: RunningGateway, monkeypatch: pytest.MonkeyPatch, head_clock: ManualClock
) -> None:
    monkeypatch.setattr(connection_limits, "HTTP_CLOSE_DELAY", 0.0)
    reader, writer = await connect(portico.url)
    writer.write(b"PUT /session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000000\r\n\r\n{")
    assert b" 401 " in await asyncio.wait_for(reader.readline(), 60)
    writer.write(b" ")
    await head_clock.expire(connection_limits.HEAD_SECONDS)
    await asyncio.wait_for(reader.read(), 60)
    writer.close()
