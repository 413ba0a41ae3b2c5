"""Requests for turns whose parts are wrong in random combinations, and what a long response keeps of its request."""

from __future__ import annotations

import asyncio
import gc
import json
import random
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message, Scope

from tests.support.app_pool import app_of
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.support.named_keys import add_key
from tests.support.requests import create_session, session_body

TASK = {"driver": "echo", "task": "hello"}
BODIES: list[bytes] = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"{}",
    b'{"messages": NaN}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": []}',
    b'{"messages": "x"}',
    b'{"messages": [{"role": "user", "content": 7}]}',
    b'{"messages": [{"role": "system", "content": "x"}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "stream": "x"}',
    b'{"messages": [{"role": "user", "content": "x"}], "agent": {"options": {"no": "x"}}}',
    b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "", "description": "x"}]}',
    b'{"messages": [{"role": "tool", "toolCallId": "x", "content": "x"}]}',
    b'{"driver": "none", "task": "x"}',
    b'{"driver": "echo", "task": ""}',
    b'{"driver": "none", "task": "x", "auth_token": "wrong"}',
    b"x" * 3000,
    b"[" * 900,
]
PATHS = [
    "/session/ID",
    "/session/OTHER",
    "/session/none",
    "/session/%2e%2e",
    "/session/",
    "/aap/v3/sessions/ID/turns",
    "/aap/v3/sessions/OTHER/turns",
    "/v1/execute",
]
HEADERS: dict[str, list[str | None]] = {
    "authorization": ["Bearer NAMED", "bearer NAMED", "Bearer  NAMED ", "Bearer", "NAMED", "Bearer wrong", "Bearer wr\u00f6ng"],
    "host": ["localhost", "localhost:1", "elsewhere.example", "localhost@elsewhere.example", "127.0.0.1.", ""],
    "origin": [None, "null", "https://elsewhere.example", "http://localhost:3000"],
    "sec-fetch-site": [None, "cross-site", "none"],
    "content-type": ["application/json", "APPLICATION/JSON", "text/plain", "application/json, text/plain", "multipart/form-data"],
    "content-encoding": [None, "gzip"],
    "content-length": [None, "-1", "999999999", "x"],
    "idempotency-key": [None, "\u00e9", " ", "a b"],
    "last-event-id": [None, "0", "99999999999999999999", "1e3"],
    "x-forwarded-for": [None, "203.0.113.7"],
}
"""Values of each header, with one that is valid in most requests first."""


@pytest.mark.parametrize("seed", range(2))
async def test_hostile_requests_of_a_named_key_are_refused_and_change_nothing(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    async with run_gateway(gateway_config(tmp_path, server={"max_body": 2000})) as portico:
        other = (await create_session(portico.client, "echo"))["sessionId"]
        key = await add_key(portico.gateway, "phone")
        named = {"Authorization": f"Bearer {key}"}
        own = (await portico.client.put("/session", json=session_body("echo"), headers=named)).json()["sessionId"]
        before = [(await portico.client.get(f"/session/{session}")).content for session in (other, own)]
        statuses = set()
        for _ in range(300):
            values = {name: chosen.choice(given) if chosen.random() < 0.3 else given[0] for name, given in HEADERS.items()}
            headers = {name: value.replace("NAMED", key).encode() for name, value in values.items() if value is not None}
            path, content = chosen.choice(PATHS).replace("ID", own).replace("OTHER", other), chosen.choice(BODIES)
            status, answer = await _send(portico, path, headers, content)
            assert 300 <= status < 500, (path, content[:100], headers, answer)
            assert status == 307 or json.loads(answer)["error"], (path, content[:100], headers, answer)
            statuses.add(status)
        assert statuses >= {400, 401, 403, 404, 413, 415}
        assert [(await portico.client.get(f"/session/{session}")).content for session in (other, own)] == before


async def _send(portico: RunningGateway, path: str, headers: dict[str, bytes], content: bytes) -> tuple[int, bytes]:
    """Send a request as no client would. Return the status and the body of its response."""
    sent, received = list[Any](), [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> Message:
        return received.pop() if received else await asyncio.Event().wait()

    async def send(message: Message) -> None:
        sent.append(message)

    raw = [(name.encode(), value) for name, value in headers.items()]
    with app_of(portico.gateway) as app:
        await app(_scope(path, raw), receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def _scope(path: str, headers: list[tuple[bytes, bytes]]) -> Scope:
    server, client = ("127.0.0.1", 8123), ("127.0.0.1", 50000)
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http"}
    return {**scope, "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
            "server": server, "client": client, "state": {}}  # fmt: skip


async def test_the_body_of_a_request_is_not_kept_in_memory_while_its_response_is_sent(portico: RunningGateway) -> None:
    body = json.dumps({"driver": "echo", "task": "hello of a large body"}).encode()
    chunks = [{"type": "http.request", "body": body, "more_body": False}]
    kept = list[bool]()

    async def receive() -> Message:
        return chunks.pop() if chunks else await asyncio.Event().wait()

    async def send(message: Message) -> None:
        if b"hello" in message.get("body", b""):
            # Not isinstance: the object of a weak proxy may be gone.
            requests = [found for found in gc.get_objects() if issubclass(type(found), Request)]
            kept.append(any(getattr(request, "_body", None) == body for request in requests))

    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {KEY}".encode()), (b"content-type", b"application/json")]
    with app_of(portico.gateway) as app:
        await app(_scope("/v1/execute", headers), receive, send)
    assert kept == [False]
