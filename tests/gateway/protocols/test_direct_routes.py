"""Direct routes: a turn has the same response with and without FastAPI, and only valid requests do without it."""

from __future__ import annotations

import asyncio
import json
import random
import weakref
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.protocols import execute
from gateway.protocols.direct_routes import DirectRequest, DirectRoute, DirectRoutes
from tests.app_pool import app_of
from tests.daemon import KEY, NO_CERTIFICATES, RunningGateway, gateway_config, run_gateway
from tests.gateway.requests import create_session, session_body, user_message
from tests.named_keys import add_key

ROOT = "/behind"
"""A request below another root path is not for the direct routes."""
JSON = {"content-type": "application/json"}
TURN = {"messages": [user_message("hello")]}
TASK = {"driver": "echo", "task": "hello"}
TURN_PATHS = ("/session/ID", "/aap/v1/session/ID", "/aap/v2/session/ID", "/aap/v3/sessions/ID/turns")

HEADERS: list[dict[str, str]] = [
    {"authorization": ""},
    {"authorization": "Bearer wrong"},
    {"authorization": f"Basic {KEY}"},
    {"content-type": "text/plain"},
    {"content-type": ""},
    {"content-type": "application/json; charset=utf-8"},
    {"content-type": "application/problem+json"},
    {"idempotency-key": ""},
    {"idempotency-key": "x" * 1025},
    {"idempotency-key": "k", "last-event-id": "x"},
    {"last-event-id": "x"},
    {"last-event-id": "-1"},
    {"last-event-id": ""},
    {"host": "elsewhere.example"},
    {"origin": "https://elsewhere.example"},
]
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
]


class _Client:
    """Sends requests to an app, below a root path."""

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app, self._root = app, root
        self._scope: Scope = {}
        transport = httpx.ASGITransport(self._observed, root_path=root)
        self._client = httpx.AsyncClient(transport=transport, base_url=f"http://localhost{root}", verify=NO_CERTIFICATES)

    async def post(self, path: str, content: bytes | AsyncIterator[bytes], headers: Mapping[str, str | bytes]) -> tuple[Any, ...]:
        """Return what a client gets, and the route in the access log."""
        given = {"authorization": f"Bearer {KEY}", **JSON, **headers}
        answer = await self._client.post(path, content=content, headers=given)
        found = [(name, value.replace(self._root.encode(), b"")) for name, value in answer.headers.raw if name != b"x-request-id"]
        return answer.status_code, found, answer.content, getattr(self._scope.get("route"), "path", None)

    async def _observed(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        await self._app(scope, receive, send)


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 1000):
        yield content[start : start + 1000]


async def test_responses_are_those_of_fastapi(tmp_path: Path) -> None:
    async with run_gateway(gateway_config(tmp_path, server={"max_body": 2000})) as portico:
        session = (await create_session(portico.client, "echo"))["sessionId"]
        valid, paths = json.dumps(TURN).encode(), [path.replace("ID", session) for path in TURN_PATHS]
        cases: list[tuple[str, bytes, dict[str, str]]] = [("/session/none", valid, headers) for headers in HEADERS]
        cases += [("/v1/execute", b'{"driver": "none", "task": "x"}', headers) for headers in HEADERS]
        for path in paths:
            cases += [(path, valid, {}), (path.replace(session, "none"), valid, {}), (path + "/", valid, {})]
        cases += [(path, body, {}) for path in (paths[0], paths[3], "/v1/execute") for body in BODIES]
        statuses = set()
        with app_of(portico.gateway) as app:
            direct, by_fastapi = _Client(app, ""), _Client(app, ROOT)
            for path, content, headers in cases:
                answer = await direct.post(path, content, headers)
                assert answer == await by_fastapi.post(path, content, headers), (path, content[:100], headers)
                statuses.add(answer[0])
            for content in BODIES:
                answer = await direct.post(paths[0], _chunks(content), {})
                assert answer == await by_fastapi.post(paths[0], _chunks(content), {}), content[:100]
        assert statuses == {200, 307, 400, 401, 403, 404, 413, 415}


PARTS: list[tuple[str, list[Any]]] = [
    (
        "path",
        [
            "/session/ID",
            "/session/OTHER",
            "/session/none",
            "/session/%2e%2e",
            "/session/",
            "/aap/v3/sessions/OTHER/turns",
            "/v1/execute",
        ],
    ),
    ("authorization", ["Bearer NAMED", "bearer NAMED", "Bearer  NAMED ", "Bearer", "NAMED", "Bearer wrong", "Bearer wr\u00f6ng"]),
    ("host", ["localhost", "localhost:1", "elsewhere.example", "localhost@elsewhere.example", "127.0.0.1.", ""]),
    ("origin", [None, "null", "https://elsewhere.example", "http://localhost:3000"]),
    ("sec-fetch-site", [None, "cross-site", "none"]),
    (
        "content-type",
        ["application/json", "APPLICATION/JSON", "text/plain", "application/json, text/plain", "multipart/form-data"],
    ),
    ("content-encoding", [None, "gzip"]),
    ("content-length", [None, "-1", "999999999", "x"]),
    ("idempotency-key", [None, "\u00e9", " ", "a b"]),
    ("last-event-id", [None, "0", "99999999999999999999", "1e3"]),
    ("x-forwarded-for", [None, "203.0.113.7"]),
]
"""Parts of a request, each with a value that is valid in most requests first."""


@pytest.mark.parametrize("seed", range(4))
async def test_hostile_requests_of_a_named_key_have_the_responses_of_fastapi(tmp_path: Path, seed: int) -> None:
    """Random combinations: none gets further by one way than by the other, and none reaches a session of another key."""
    chosen = random.Random(seed)
    async with run_gateway(gateway_config(tmp_path, server={"max_body": 2000})) as portico:
        other = (await create_session(portico.client, "echo"))["sessionId"]
        key = await add_key(portico.gateway, "phone")
        named = {"Authorization": f"Bearer {key}"}
        own = (await portico.client.put("/session", json=session_body("echo"), headers=named)).json()["sessionId"]
        before = (await portico.client.get(f"/session/{other}")).content
        bodies = [*BODIES, json.dumps(TASK).encode(), json.dumps({**TASK, "auth_token": "wrong"}).encode(), b"[" * 900]
        with app_of(portico.gateway) as app:
            direct, by_fastapi = _Client(app, ""), _Client(app, ROOT)
            for _ in range(60):
                values = {name: chosen.choice(given) if chosen.random() < 0.3 else given[0] for name, given in PARTS}
                path = values.pop("path").replace("ID", own).replace("OTHER", other)
                headers = {name: value.replace("NAMED", key).encode() for name, value in values.items() if value is not None}
                # A turn that is accepted is another one each time.
                content = chosen.choice([body for body in bodies if b"hello" not in body])
                answer = await direct.post(path, content, headers)
                assert answer == await by_fastapi.post(path, content, headers), (path, content[:100], headers)
                assert answer[0] >= 300, (path, content[:100], headers)
        assert (await portico.client.get(f"/session/{other}")).content == before


async def _passed_on(
    routes: list[DirectRoute], portico: RunningGateway, path: str, *received: Message, result: list[Any] | None = None
) -> tuple[bool, list[Any]]:
    """Whether a request is passed on to the app, and what was sent or what the app has received."""
    result = [] if result is None else result
    messages = list(received)
    passed_on = False

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal passed_on
        passed_on = True
        result.extend([await receive() for _ in received])

    async def receive() -> Message:
        return messages.pop(0) if messages else await asyncio.Event().wait()

    async def send(message: Message) -> None:
        result.append(message)

    async def failed(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, 500)

    headers = [(b"authorization", f"Bearer {KEY}".encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    await DirectRoutes(app, portico.gateway, routes, {Exception: failed})(scope, receive, send)
    return passed_on, result


def _request(body: Any) -> Message:
    return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}


async def test_only_valid_requests_do_without_fastapi(tmp_path: Path) -> None:
    async with run_gateway(gateway_config(tmp_path, limits={"connections_per_key": 1})) as portico:
        routes = [execute.direct_route(portico.gateway, execute.router(portico.gateway))]
        passed_on, sent = await _passed_on(routes, portico, "/v1/execute", _request(TASK))
        assert not passed_on
        assert sent[0]["status"] == 200
        assert b"hello" in b"".join(message["body"] for message in sent[1:])
        for path, body in (("/v1/execute", {"driver": "echo"}), ("/v1/executed", TASK)):
            assert await _passed_on(routes, portico, path, _request(body)) == (True, [_request(body)])
        # No request holds a connection any more.
        portico.gateway.quotas.connections.take(None)


async def test_client_that_leaves_in_the_middle_of_its_body_is_passed_on(portico: RunningGateway) -> None:
    routes = [execute.direct_route(portico.gateway, execute.router(portico.gateway))]
    received: list[Message] = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    assert await _passed_on(routes, portico, "/v1/execute", *received) == (True, received)


async def test_failure_of_a_direct_route_is_a_500(portico: RunningGateway) -> None:
    async def fail(request: DirectRequest) -> Response:
        raise ValueError("broken")

    sent: list[Any] = []
    failing = DirectRoute(execute.router(portico.gateway), "execute", {}, fail)
    with pytest.raises(ValueError, match="broken"):
        await _passed_on([failing], portico, "/v1/execute", _request(TASK), result=sent)
    assert sent[0]["status"] == 500
    assert sent[1]["body"] == b'{"error":"broken"}'


async def test_request_is_not_kept_in_memory_while_its_response_is_sent(portico: RunningGateway) -> None:
    class Chunk(dict[str, Any]):
        """A message that can have weak references."""

    chunks = [Chunk(_request(TASK))]
    references: list[weakref.ref[Any]] = [weakref.ref(chunks[0])]
    left: list[Any] = []

    class Observed(Response):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            left.extend(reference() for reference in references)

    async def respond(request: DirectRequest) -> Response:
        references.append(weakref.ref(request.body))
        return Observed()

    async def receive() -> Message:
        return chunks.pop()

    async def unused(*_: Any) -> Any:
        raise NotImplementedError

    headers = [(b"authorization", f"Bearer {KEY}".encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/execute", "headers": headers}
    route = DirectRoute(execute.router(portico.gateway), "execute", {}, respond)
    await DirectRoutes(unused, portico.gateway, [route], {Exception: unused})(scope, receive, unused)
    assert left == [None, None]
