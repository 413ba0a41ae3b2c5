"""`/v1/execute` takes a key in its body: what a caller can cause before the key is known is bounded."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
from pydantic_core import from_json

from gateway.protocols import authenticated_routes as limits
from gateway.security.quotas import UnauthenticatedBodies
from tests.support.cluster import leave_out, placement
from tests.support.daemon import KEY, RunningGateway
from tests.support.manual_clock import ManualClock
from tests.support.raw_http import connect, send_raw
from tests.support.requests import expect_error
from tests.support.sse import parse_output_events
from tests.support.waiting import wait_until

HEAD = b"POST /v1/execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
TASK = {"driver": "echo", "task": "x"}


async def test_large_body_is_refused_before_it_is_sent(portico: RunningGateway) -> None:
    for key in (b"", b"Authorization: Bearer wrong-key\r\n"):
        for size in (limits.MAX_UNAUTHENTICATED_BODY + 1, 48 * 1024 * 1024):
            reader, writer = await connect(portico.url)
            writer.write(HEAD + key + b"Content-Length: %d\r\n\r\n" % size)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            writer.close()
            assert head.startswith(b"HTTP/1.1 401 ") and b"www-authenticate: Bearer" in head, key
    # Large body without a length is refused.
    chunk = b"%x\r\n%b\r\n" % (64 * 1024, b"x" * 64 * 1024)
    reader, writer = await connect(portico.url)
    writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 17 + b"0\r\n\r\n")
    assert b" 401 " in await asyncio.wait_for(reader.readline(), 60)
    writer.close()


async def test_key_in_the_body_is_found_in_a_small_body_only(portico: RunningGateway) -> None:
    if placement():
        leave_out("gets an answer before its body is read, over a connection that the proxy has the server close")
    del portico.client.headers["Authorization"]
    small = {**TASK, "auth_token": KEY, "task": "x" * (limits.MAX_UNAUTHENTICATED_BODY - 1000)}
    assert (await portico.client.post("/v1/execute", json=small)).status_code == 200
    large = {**TASK, "auth_token": KEY, "task": "x" * limits.MAX_UNAUTHENTICATED_BODY}
    assert "1048576 bytes" in await expect_error(portico.client.post("/v1/execute", json=large), 401)
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = await portico.client.post("/v1/execute", json={**large, "auth_token": None}, headers=headers)
    assert parse_output_events(answer.text)[0]["text"] == large["task"]


async def test_body_without_a_valid_key_is_not_parsed(portico: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    # Body without a key is not checked further.
    del portico.client.headers["Authorization"]
    for body in (
        b"",
        b"{",
        b"[" * 10_000,
        b'"x"',
        b'{"task": "x"}',
        b'{"auth_token": 7}',
        b'{"auth_token": "wrong"}',
        b'{"auth_token": "%b", "x": %b%b}' % (KEY.encode(), b"[" * 300, b"]" * 300),
    ):
        for content_type in ("application/json", "text/plain"):
            answer = await portico.client.post("/v1/execute", content=body, headers={"Content-Type": content_type})
            assert (answer.status_code, "portico key" in answer.json()["error"]) == (401, True), body
    # Body without a valid key is not parsed.
    parsed: list[bytes] = []

    def parse(data: bytes, **options: Any) -> Any:
        parsed.append(data)
        return from_json(data, **options)

    monkeypatch.setattr(limits, "from_json", parse)
    headers = {"Content-Type": "application/json"}
    for body in (b'{"auth_token": "wrong"}', b'{"auth_token": "a\\u0062"}', b"[]", b'{"auth_token": "wrong"}' * 10_000):
        assert (await portico.client.post("/v1/execute", content=body, headers=headers)).status_code == 401
        assert all(len(literal) < 20 for literal in parsed) and len(parsed) <= limits.MAX_CANDIDATES
        parsed.clear()
    # The field itself counts, whatever other texts look like it.
    task, escaped = json.dumps({**TASK, "auth_token": KEY}), "".join(f"\\u{ord(letter):04x}" for letter in KEY)
    for body, status in (
        (json.dumps({**TASK, "x": {"auth_token": KEY}}), 401),
        (json.dumps({**TASK, "auth_token": "wrong", "x": {"auth_token": KEY}}), 401),
        (json.dumps({**TASK, "x": {"auth_token": "wrong"}, "auth_token": KEY}), 200),
        (task.replace(KEY, escaped), 200),
        (json.dumps({**TASK, "task": task, "auth_token": KEY}, indent=2), 200),
    ):
        assert (await portico.client.post("/v1/execute", content=body, headers=headers)).status_code == status, body


async def test_slow_body_ends(portico: RunningGateway, clock: ManualClock) -> None:
    sending = asyncio.create_task(send_raw(portico.url, HEAD + b'Content-Length: 100\r\n\r\n{"auth_token"'))
    await clock.expire(limits.UNAUTHENTICATED_BODY_SECONDS)
    status, got = await sending
    assert (status, b"connection: close" in got.lower()) == (408, True)


async def test_few_bodies_are_read_at_the_same_time(portico: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(4):
            _, writer = await connect(portico.url)
            stack.callback(writer.close)
            writer.write(HEAD + b"Content-Length: 100\r\n\r\n{")
        await wait_until(lambda: portico.gateway.unauthenticated_bodies.full)
        body = {**TASK, "auth_token": KEY}
        monkeypatch.setattr(UnauthenticatedBodies, "WAITING", 0)
        refused = await portico.client.post("/v1/execute", json=body, headers={"Authorization": ""})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        monkeypatch.undo()
        # Nothing else happens within this time: the four bodies stay.
        monkeypatch.setattr(limits, "UNAUTHENTICATED_BODY_SECONDS", 0.05)
        refused = await portico.client.post("/v1/execute", json=body, headers={"Authorization": ""})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        # A key in the header does not wait for them.
        assert (await portico.client.post("/v1/execute", json=body)).status_code == 200
    monkeypatch.undo()
    answer = await portico.client.post("/v1/execute", json=body, headers={"Authorization": ""})
    assert answer.status_code == 200, json.dumps(answer.text)
