"""Every endpoint except `/meta`, `/healthz` and `/readyz` checks the API key before the rest of the request."""

from __future__ import annotations

import itertools
from typing import Any
from urllib.parse import urldefrag

import pytest

from tests.support.aap_client import BASE_URLS
from tests.support.daemon import KEY, RunningGateway
from tests.support.requests import expect_error, session_body

JSON = {"Content-Type": "application/json"}
V2_ENDPOINTS: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", "/sessions", {}),
    ("PUT", "/session", {"json": session_body("echo")}),
    ("PUT", "/session", {"content": b"{", "headers": JSON}),
    ("PUT", "/session", {"json": {}}),
    ("POST", "/session/sess_x", {"json": {"messages": []}}),
    ("POST", "/session/sess_x", {"content": b"[" * 10_000, "headers": JSON}),
    ("GET", "/session/sess_x", {}),
    ("GET", "/session/sess_x?history=junk", {}),
    ("DELETE", "/session/sess_x", {}),
    ("POST", "/session/sess_x/cancel", {}),
    ("GET", "/session/sess_x/queue", {}),
    ("POST", "/session/sess_x/queue", {"content": b"{", "headers": JSON}),
    ("PUT", "/session/sess_x/queue", {"json": {}}),
    ("POST", "/session/sess_x/queue/continue", {}),
    ("PATCH", "/session/sess_x/queue/msg_x", {"json": {}}),
    ("DELETE", "/session/sess_x/queue/msg_x", {}),
    ("GET", "/session/sess_x/events?after=junk", {}),
    ("GET", "/session/sess_x/history?type=junk", {}),
]
V3_ENDPOINTS: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", "/sessions", {}),
    ("POST", "/sessions", {"json": {}}),
    ("POST", "/sessions", {"json": {"agent": {"name": "echo"}}}),
    ("POST", "/sessions/sess_x/turns", {"content": b"{", "headers": JSON}),
    ("GET", "/sessions/sess_x", {}),
    ("GET", "/sessions/sess_x/history?type=junk", {}),
    ("DELETE", "/sessions/sess_x", {}),
    ("POST", "/sessions/sess_x/cancel", {}),
    ("GET", "/sessions/sess_x/queue", {}),
    ("POST", "/sessions/sess_x/queue", {"content": b"{", "headers": JSON}),
    ("PUT", "/sessions/sess_x/queue", {"json": {}}),
    ("POST", "/sessions/sess_x/queue/continue", {}),
    ("PATCH", "/sessions/sess_x/queue/msg_x", {"json": {}}),
    ("DELETE", "/sessions/sess_x/queue/msg_x", {}),
    ("GET", "/sessions/sess_x/events?after=junk", {}),
    ("PATCH", "/sessions/sess_x", {"json": {"title": 1}}),
    ("GET", "/sessions/sess_x/log?after=junk", {}),
    ("GET", "/sessions/sess_x/calls/call_x/files", {}),
    ("GET", "/sessions/sess_x/messages?first=junk", {}),
    ("GET", "/sessions/sess_x/files?limit=junk", {}),
    ("GET", "/sessions/sess_x/frames", {}),
    ("POST", "/sessions/sess_x/fork", {"json": {}}),
    ("GET", "/folders", {}),
    ("GET", "/worktrees", {}),
    ("GET", "/worktrees/sess_x", {}),
    ("GET", "/worktrees/sess_x/diff?path=junk", {}),
    ("POST", "/worktrees/sess_x/commit", {"json": {}}),
    ("POST", "/worktrees/sess_x/merge", {"json": {}}),
    ("DELETE", "/worktrees/sess_x", {}),
    ("GET", "/updates", {}),
    ("GET", "/search", {}),
]
ENDPOINTS = [
    *V2_ENDPOINTS[:-1],
    *[(method, "/aap/v1" + path, request) for method, path, request in V2_ENDPOINTS[:-1]],
    *[(method, "/aap/v2" + path, request) for method, path, request in V2_ENDPOINTS],
    *[(method, "/aap/v3" + path, request) for method, path, request in V3_ENDPOINTS],
    ("POST", "/v1/execute", {"json": {"driver": "echo", "task": "x"}}),
    ("POST", "/v1/chat/completions", {"json": {"model": "echo", "messages": [{"role": "user", "content": "x"}]}}),
    ("POST", "/v1/messages", {"json": {"model": "echo", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}}),
    ("POST", "/v1/messages/count_tokens", {"json": {"model": "echo", "messages": [{"role": "user", "content": "x"}]}}),
    ("POST", "/v1/responses", {"json": {"model": "echo", "input": "x"}}),
    ("GET", "/v1/responses/resp_x", {}),
    ("DELETE", "/v1/responses/resp_x", {}),
    ("POST", "/v1/responses/resp_x/cancel", {}),
    ("GET", "/v1/responses/resp_x/input_items", {}),
    ("POST", "/v1/conversations", {"json": {}}),
    ("POST", "/v1/conversations/conv_x", {"json": {"metadata": {}}}),
    ("GET", "/v1/conversations/conv_x", {}),
    ("DELETE", "/v1/conversations/conv_x", {}),
    ("GET", "/v1/models", {}),
    ("GET", "/v1/models/sonnet", {}),
    ("GET", "/v1/drivers", {}),
    ("GET", "/v1/live-agents", {}),
    ("DELETE", "/v1/live-agents/live_x", {}),
    ("GET", "/v1/keys", {}),
    ("POST", "/v1/keys", {"json": {"name": "phone"}}),
    ("DELETE", "/v1/keys/key_x", {}),
    ("GET", "/v1/audit", {}),
    ("GET", "/v1/policy", {}),
    ("POST", "/v1/policy/check", {"json": {}}),
    ("GET", "/v1/diagnosis", {}),
    ("GET", "/v1/nodes", {}),
    ("POST", "/v1/nodes/node_x/drain", {}),
    ("GET", "/metrics", {}),
    *[(method, "/acp/echo", {}) for method in ("POST", "GET", "DELETE")],
    ("GET", "/openapi.json", {}),
    ("POST", "/v1/sign-in-codes", {}),
    ("GET", "/v1/sign-ins/current", {}),
    ("DELETE", "/v1/sign-ins/current", {}),
]
WRONG = [None, "Bearer wrong-key", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer", f"Basic {KEY}", KEY, f"Bearer {KEY} {KEY}"]


async def test_every_endpoint_refuses_a_missing_or_wrong_key(portico: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.security.wrong_keys.MAX_WRONG_KEYS", 10_000)
    # All forms of a wrong key at one endpoint of each kind, which takes the key in its own way.
    kinds = [one for one in ENDPOINTS if one[1] in ("/aap/v3/sessions", "/v1/execute", "/v1/messages", "/v1/keys")]
    for authorization, (method, path, request) in [*itertools.product(WRONG[:2], ENDPOINTS), *itertools.product(WRONG, kinds)]:
        portico.client.headers.pop("Authorization", None)
        if authorization is not None:
            portico.client.headers["Authorization"] = authorization
        answer = await portico.client.request(method, path, **request)
        assert answer.status_code == 401, (method, path, answer.text)
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "portico key" in str(answer.json()["error"])
        assert KEY not in answer.text


async def test_meta_needs_no_key_and_refuses_a_wrong_one(portico: RunningGateway) -> None:
    del portico.client.headers["Authorization"]
    for base in ("", "/aap/v1", "/aap/v2", "/aap/v3"):
        key = {"Authorization": f"Bearer {KEY}"}
        assert (await portico.client.get(f"{base}/meta", headers=key)).status_code == 200, base
        assert (await portico.client.get(f"{base}/meta")).status_code == 200, base
        for authorization in filter(None, WRONG if base == "/aap/v3" else ()):
            answer = await portico.client.get(f"{base}/meta", headers={"Authorization": authorization})
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), base
            assert "agents" not in answer.json(), base


async def test_every_documented_endpoint_is_covered(portico: RunningGateway) -> None:
    documented = (await portico.client.get("/openapi.json")).json()["paths"]
    variables = {
        "sess_x": "{session_id}",
        "call_x": "{call_id}",
        "msg_x": "{message_id}",
        "/echo": "/{agent}",
        "/sonnet": "/{model_id}",
        "resp_x": "{response_id}",
        "conv_x": "{conversation_id}",
        "live_x": "{id}",
        "key_x": "{name}",
        "node_x": "{id}",
    }
    tested = set()
    for method, path, _ in ENDPOINTS:
        for name, variable in variables.items():
            path = path.split("?")[0].replace(name, variable)
        tested.add((method, path))
    # A turn that streams is an operation of its own, at the same path with a fragment.
    operations = {(method.upper(), urldefrag(path).url) for path, methods in documented.items() for method in methods}
    public = {("GET", "/healthz"), ("GET", "/readyz"), ("POST", "/v1/sign-ins")}
    assert operations - tested == {*public, *(("GET", f"{base.url}/meta") for base in BASE_URLS)}
    assert tested - operations == {("GET", "/openapi.json")}


async def test_authorization_scheme_is_case_insensitive(portico: RunningGateway) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        answer = await portico.client.get("/sessions", headers={"Authorization": f"{scheme} {KEY}"})
        assert answer.status_code == 200


async def test_refused_request_starts_no_run(portico: RunningGateway) -> None:
    headers = {"Authorization": "Bearer wrong-key"}
    await expect_error(portico.client.put("/session", json=session_body("echo"), headers=headers), 401)
    await expect_error(portico.client.post("/v1/execute", json={"driver": "echo", "task": "x"}, headers=headers), 401)
    assert (await portico.client.get("/sessions")).json() == {"sessions": []}
    assert not await portico.gateway.store.runs.unfinished()
