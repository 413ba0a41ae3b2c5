"""The requirements of the protocol's official Test Compatibility Kit, by its names, as functions of a client. Those of session
capabilities are in session_requirements.py.

A requirement gets an initialized client and must leave the connection usable. The agent repeats its prompt in its answer. To the
prompt `slow`, `script` sends other text for a long time, while `echo` repeats it and is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.acp_client import Client, RpcFailed, load, prompt

Requirement = Callable[[Client], Awaitable[None]]
REQUIREMENTS: dict[str, Requirement] = {}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
STOP_REASONS = {"end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"}


def requirement(name: str) -> Callable[[Requirement], Requirement]:
    def register(check: Requirement) -> Requirement:
        async def checked(client: Client) -> None:
            try:
                await check(client)
                assert client.invalid == []
            except Exception as error:
                error.add_note(f"requirement: {name}")
                raise

        REQUIREMENTS[name] = checked
        return check

    return register


async def refused(client: Client, method: str, params: Any, code: int) -> RpcFailed:
    with pytest.raises(RpcFailed) as error:
        await client.request(method, params)
    assert error.value.code == code, error.value
    return error.value


@requirement("TRANSPORT-001/002, JSONRPC-002, SCHEMA-001/002 every message matches the schema")
async def messages(client: Client) -> None:
    """The client validates each received message; this exchange has one of every kind."""
    session = await client.new()
    await client.prompt(session, "Grüße 🦊")
    assert "Grüße 🦊" in client.text(session)
    await client.request("session/load", load(session))
    await refused(client, "no/such", {}, -32601)
    key_sets = [set(message) - {"jsonrpc"} for message in client.received]
    for key_set in ({"id", "result"}, {"id", "error"}, {"method", "params"}):
        assert key_set in key_sets


@requirement("JSONRPC-001 the id is returned unchanged")
async def ids(client: Client) -> None:
    for request_id in (4711, "a text", "4711", -1):
        await client.request("session/list", request_id=request_id)
        assert client.received[-1]["id"] == request_id


@requirement("JSONRPC-003 notifications are never answered")
async def notifications(client: Client) -> None:
    before = len(client.received)
    for method, params in (("session/cancel", {"sessionId": "none"}), ("_x", {}), ("no/such", {}), ("session/cancel", [])):
        await client.notify(method, params)
    await client.request("session/list")
    assert len(client.received) == before + 1


@requirement("INIT-001/002/004 version 1, agent info and agent capabilities")
async def initialize(client: Client) -> None:
    answer = await client.initialize()
    assert answer["protocolVersion"] == 1
    assert answer["agentInfo"]["name"]
    assert answer["agentInfo"]["version"]
    assert answer["agentCapabilities"]["loadSession"] is True
    assert set(answer) <= {"protocolVersion", "agentCapabilities", "agentInfo", "authMethods", "_meta"}


@requirement("INIT-003 an unknown version is answered with the agent's own")
async def versions(client: Client) -> None:
    for version in (65535, 2, 0):
        # A client of the next version sends its info and capabilities under other names.
        asked = {"protocolVersion": version, "info": {"name": "test", "version": "1"}, "capabilities": {}}
        assert (await client.request("initialize", asked))["protocolVersion"] == 1


@requirement("SESSION-001/002 every session has its own id")
async def new_sessions(client: Client) -> None:
    found = [await client.new() for _ in range(2)]
    folder = (await client.request("session/list"))["sessions"][0]["cwd"]
    found.append(await client.new(folder))
    assert all(found)
    assert len(set(found)) == 3


@requirement("PROMPT-001/002 a prompt has updates of its session, and a stop reason")
async def prompts(client: Client) -> None:
    session, before = await client.new(), len(client.received)
    assert (await client.prompt(session, "hello"))["stopReason"] in STOP_REASONS
    updates = [m for m in client.received[before:] if m.get("method") == "session/update"]
    assert updates
    assert {m["params"]["sessionId"] for m in updates} == {session}
    assert "hello" in client.text(session)


@requirement("CANCEL-001/002 a cancelled prompt is answered with cancelled, and nothing is sent after")
async def cancel(client: Client) -> None:
    session = await client.new()
    answer = await client.begin("session/prompt", prompt(session, "slow"))
    await client.until(lambda _: client.text(session))
    await client.notify("session/cancel", {"sessionId": session})
    found = await asyncio.wait_for(answer, 60)
    if "slow" in client.text(session):
        # `echo` repeats the prompt and is done before it can be cancelled.
        assert found["stopReason"] in ("end_turn", "cancelled")
    else:
        assert found["stopReason"] == "cancelled"
    before = len(client.received)
    await client.request("session/list")
    assert len(client.received) == before + 1
    # The next answer of the session does not contain it either.
    assert (await client.prompt(session, "goes on"))["stopReason"] == "end_turn"
    text = client.text(session, since=before)
    assert text.endswith("goes on")
    assert "word" not in text


@requirement("PROMPTCAP-001..3, PROMPT-003 declared prompt content is accepted, other content is refused")
async def content(client: Client) -> None:
    can = (await client.initialize())["agentCapabilities"]["promptCapabilities"]
    session = await client.new()
    link = {"type": "resource_link", "uri": "file:///a/b.py", "name": "b.py"}
    file = {"type": "resource", "resource": {"uri": "file:///a/c.py", "text": "print(1)"}}
    answer = await client.request("session/prompt", prompt(session, "look at", link, file))
    assert answer["stopReason"] == "end_turn"
    assert "b.py" in client.text(session)
    assert "print(1)" in client.text(session)
    image = {"type": "image", "mimeType": "image/png", "data": PIXEL}
    if can["image"]:
        assert (await client.request("session/prompt", prompt(session, image)))["stopReason"] == "end_turn"
    else:
        await refused(client, "session/prompt", prompt(session, image), -32602)
    assert can["audio"] is False
    await refused(client, "session/prompt", prompt(session, {"type": "audio", "mimeType": "audio/wav", "data": "aGk="}), -32602)


@requirement("AUTH-001..005 login methods have unique ids and need no terminal; without methods no login is needed")
async def auth(client: Client) -> None:
    names = [method["id"] for method in await _login_methods(client)]
    assert len(set(names)) == len(names)
    await refused(client, "authenticate", {"methodId": "none"}, -32602)
    assert await client.request("logout") == {}
    if names:
        await refused(client, "session/new", {"cwd": ".", "mcpServers": []}, -32000)
        assert await client.request("authenticate", {"methodId": names[0]}) == {}
    assert await client.new()


async def _login_methods(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.initialize())["authMethods"]
    assert all(method.get("type") != "terminal" for method in found)
    return found


@requirement("CLIENTCAP-001..3 the client gets no request for a capability that it does not support")
async def client_capabilities(client: Client) -> None:
    client.choose = lambda params: params["options"][0]["optionId"]
    await client.prompt(await client.new(), "do the work")
    client.choose = None
    asked = {m["method"] for m in client.received if "method" in m and "id" in m}
    assert asked <= {"session/request_permission"}


@requirement("EXT-001, META-001 an extension method is answered as unknown; _meta is accepted everywhere")
async def extensions(client: Client) -> None:
    await refused(client, "_x/unknown", {"a": 1}, -32601)
    session = (await client.request("session/new", {"cwd": ".", "mcpServers": [], "_meta": {"x": 1}}))["sessionId"]
    assert (await client.request("session/prompt", {**prompt(session, "hi"), "_meta": {"trace": "1"}}))["stopReason"]


@requirement("JSONRPC-004/005, ERROR-001 errors have a code and one line, and the connection stays usable")
async def errors(client: Client) -> None:
    await refused(client, "no/such/method", {}, -32601)
    assert "cwd" in (await refused(client, "session/new", {"mcpServers": []}, -32602)).message
    assert "mcpServers" in (await refused(client, "session/new", {"cwd": "."}, -32602)).message
    await refused(client, "session/new", [1], -32602)
    await refused(client, "session/prompt", prompt("no such session", "x"), -32002)
    session = await client.new()
    await refused(client, "session/prompt", prompt(session), -32602)
    await refused(client, "session/prompt", prompt(session, "  \n"), -32602)
    await refused(client, "session/prompt", {"sessionId": session, "prompt": [{"type": "nonsense"}]}, -32602)
    await refused(client, "session/set_mode", {"sessionId": session}, -32602)
    assert (await client.prompt(session, "still here"))["stopReason"] == "end_turn"
