"""Invalid requests: each is refused with `{"error": text}`, the text names the field, and nothing changes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.aap_client import AapClient
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.requests import create_session, expect_error, get_history, session_body, user_message

JSON = {"Content-Type": "application/json"}
SECRET = "s3cret-value"
PERMISSION = {"role": "tool_permission", "toolCallId": "x", "granted": True}


def _tool(**fields: str) -> dict[str, Any]:
    """Return a tool of any version."""
    return {"name": "tool", "description": "", "inputSchema": {}, "parameters": {}, **fields}


BAD_CREATIONS: list[tuple[Any, str]] = [
    ([], "JSON object"),
    ("text", "JSON object"),
    (None, "JSON object"),
    ({}, "agent: "),
    (session_body() | {"agent": SECRET}, "agent: "),
    (session_body() | {"agent": {}}, "agent.name: "),
    (session_body() | {"agent": {"name": 7}}, "agent.name: "),
    (session_body() | {"agent": {"name": "x" * 257}}, "agent.name: string should have at most 256 characters"),
    (session_body(options={"x" * 257: "y"}), "options: 257 characters are too many"),
    (session_body(options={"reply": "y" * 65_537}), "options.reply: 65537 characters are too many"),
    (session_body(grants=[{"name": "x" * 257}]), "agent.tools.0.name: string should have at most 256 characters"),
    (session_body(tools=[_tool(name="x" * 257)]), "tools.0.name: 257 characters are too many"),
    (session_body(tools=[_tool(title="x" * 257)]), "tools.0.title: 257 characters are too many"),
    (session_body(tools=[_tool(description="x" * 65_537)]), "tools.0.description: 65537 characters are too many"),
    (session_body(tools=[_tool()] * 1001), "tools: 1001 are too many"),
    (session_body() | {"stream": SECRET}, "stream: "),
    (session_body() | {"messages": SECRET}, "messages: "),
    (session_body() | {"messages": None}, "messages: "),
    (session_body() | {"messages": []}, "messages: "),
    (session_body() | {"messages": [SECRET]}, "messages.0: "),
    (session_body() | {"messages": [{"content": SECRET}]}, "messages.0: "),
    (session_body() | {"messages": [{"role": SECRET, "content": "x"}]}, "messages.0: role must be one of 'system', 'user'"),
    (session_body() | {"messages": [user_message(7)]}, "messages.0.user.content"),
    (session_body() | {"messages": [user_message([{"type": SECRET}])]}, "messages.0.user.content"),
    (session_body() | {"messages": [user_message([{"type": "text", "text": {"a": SECRET}}])]}, "messages.0.user.content"),
    (session_body() | {"messages": [{"role": "system", "content": [SECRET]}, user_message()]}, "messages.0.system.content"),
    (session_body() | {"messages": [{"role": "tool", "content": SECRET}, user_message()]}, "messages.0.tool.toolCallId"),
    (
        session_body() | {"messages": [{"role": "tool_permission", "toolCallId": "x", "granted": True}, user_message()]},
        "messages.0: role",
    ),
    (session_body() | {"messages": [user_message(), {"role": "assistant", "content": "x"}]}, "messages: the last message"),
    (session_body() | {"messages": [{"role": "system", "content": "x"}]}, "messages: the last message"),
    (
        session_body() | {"messages": [user_message(), {"role": "tool", "toolCallId": "x", "content": "x"}]},
        "messages: the last message",
    ),
]


@pytest.fixture
async def session(portico: RunningGateway) -> AsyncIterator[str]:
    """A session of `echo`. After the test, the session and the list of sessions must be unchanged."""
    found = (await create_session(portico.client, "echo"))["sessionId"]
    before = await get_history(portico.client, found)
    yield found
    assert await get_history(portico.client, found) == before
    assert (await portico.client.get("/sessions")).json() == {"sessions": [found]}
    assert not await portico.gateway.store.runs.unfinished()


async def test_error_of_an_invalid_creation_names_the_field(aap: AapClient, session: str) -> None:
    # Version 3 creates a session without a turn: a history need not end with a user message, and `stream` is a field of turns.
    only_with_a_turn = ("messages: the last message", "stream: ")
    cases = [case for case in BAD_CREATIONS if case[1] not in only_with_a_turn and case[0] != session_body() | {"messages": []}]
    for path, bodies in (("/aap/v3/sessions", cases), ("/session", BAD_CREATIONS)):
        method = "PUT" if path == "/session" else "POST"
        for body, field in bodies:
            request = aap.http.request(method, path, content=json.dumps(body), headers=JSON)
            text = await expect_error(request, 400)
            assert field in text, (body, text)
            assert SECRET not in text, (body, text)


async def test_error_of_an_invalid_turn_names_the_field(aap: AapClient, session: str) -> None:
    answer = {"role": "tool", "toolCallId": "x", "content": "y"}
    for messages, field in (
        ([], "messages: empty"),
        ([user_message(), answer], "messages: a user message stands alone"),
        ([answer, user_message()], "messages: a user message stands alone"),
        ([user_message(), user_message()], "messages: a user message stands alone"),
        ([{"role": "system", "content": SECRET}], "messages.0: role"),
        ([{"role": "assistant", "content": SECRET}], "messages.0: role"),
        ([{"role": "tool_permission", "toolCallId": "x"}], "messages.0.tool_permission.granted"),
        ([{"role": "tool_permission", "toolCallId": "x", "granted": SECRET}], "messages.0.tool_permission.granted"),
        ([answer], "'x'"),
        (None, "messages"),
    ):
        text = await expect_error(aap.post(session, {"messages": messages}), 400)
        assert field in text, (messages, text)
        assert SECRET not in text
    # Blank user message is refused.
    for blank in ("", "  \n\t", [], [{"type": "text", "text": " "}], [{"type": "thinking", "thinking": "x"}]):
        creation = aap.http.put("/session", json=session_body("echo", user_message(blank)))
        assert "blank" in await expect_error(creation, 400)
        assert "blank" in await expect_error(aap.post(session, {"messages": [user_message(blank)]}), 400)


async def test_message_with_only_an_image_is_accepted(portico: RunningGateway) -> None:
    picture = user_message([{"type": "image", "url": "https://example.org/cat.png"}])
    assert (await create_session(portico.client, "script", picture, options={"pace": "fast"}))["stopReason"] == "end_turn"


DEEP = b"[" * 200_000
MALFORMED = [
    b"",
    b"{",
    b"\xff\xfe",
    b'{"agent": {"name": "echo"}, "messages": [{"role": "user", "content": "s3cret-value"}',
    b'{"a": ' + DEEP + b"]" * 200_000 + b"}",
    DEEP,
    b'{"agent": {"name": "echo"}, "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"agent": {"name": "echo"}, "messages": [{"role": "user", "content": "x", "extra": "\\ud800"}]}',
    b'{"agent": {"name": "echo"}, "messages": [{"role": "user", "content": "x", "\\udc00": 1}]}',
    b'{"agent": {"name": "echo"}, "messages": [{"role": "user", "content": "x", "extra": ' + b"[" * 900 + b"]" * 900 + b"}]}",
    b'{"agent": {"name": "echo"}, "messages": [{"role": "user", "content": "x", "n": NaN}]}',
    b'{"agent": {"name": "echo"}, "messages": [{"role": "user", "content": "x", "n": -Infinity}]}',
    b'{"agent": {"name": "echo"}, "messages": [{"role": "user", "content": "x", "n": ' + b"9" * 5000 + b"}]}",
    b'{"agent": {"name": "ec\\u0000ho"}, "messages": [{"role": "user", "content": "x"}]}',
    b'{"agent": {"name": "echo", "options": {"cwd": "a\\u0000b"}}, "messages": [{"role": "user", "content": "x"}]}',
    b'{"agent": {"name": "echo", "options": {"cwd": "\\ud800"}}, "messages": [{"role": "user", "content": "x"}]}',
]


async def test_malformed_bodies_are_refused(aap: AapClient, session: str, portico: RunningGateway) -> None:
    for content in MALFORMED:
        for method, path in (("POST", "/aap/v3/sessions"), ("PUT", "/session"), ("POST", "/v1/execute")):
            text = await expect_error(aap.http.request(method, path, content=content, headers=JSON), 400)
            assert SECRET not in text, text
        await expect_error(aap.http.post(aap.turns(session), content=content, headers=JSON), 400)
    # Another content type is refused.
    body = json.dumps(session_body("echo", SECRET))
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "x", ""):
        text = await expect_error(portico.client.put("/session", content=body, headers={"Content-Type": kind}), 415)
        assert "Content-Type: application/json" in text
        assert SECRET not in text


async def test_error_at_an_unknown_path_names_openapi_json(portico: RunningGateway) -> None:
    for method, path, status in (
        ("GET", "/", 404),
        ("GET", "/nothing", 404),
        ("POST", "/nothing/at/all", 404),
        ("GET", "/v1/execute", 405),
        ("POST", "/session", 405),
        ("PUT", "/session/sess_x", 405),
        ("DELETE", "/sessions", 405),
        ("PATCH", "/meta", 405),
    ):
        text = await expect_error(portico.client.request(method, path), status)
        assert f"{method} {path}" in text
        assert "/openapi.json" in text
        assert ("allow" in (await portico.client.request(method, path)).headers) == (status == 405)


async def test_body_over_the_limit_is_refused(tmp_path: Path) -> None:
    for announced in (True, False):

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b" " * 1000

        async with run_gateway(gateway_config(tmp_path, server={"max_body": 10_000})) as portico:
            content: Any = b" " * 20_000 if announced else chunks()
            text = await expect_error(portico.client.put("/session", content=content, headers=JSON), 413)
            assert "server.max_body" in text, announced
            assert (await create_session(portico.client, "echo", "x" * 9000))["messages"][0]["content"] == "x" * 9000, announced


async def test_internal_error_is_reported_without_its_details(portico: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(portico.gateway.store.sessions, "page", broken)
    text = await expect_error(portico.client.get("/sessions"), 500)
    assert "log" in text
    assert SECRET not in text
