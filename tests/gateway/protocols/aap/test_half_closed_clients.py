"""A client that closes its side of the connection behind its request (SHUT_WR) still gets the response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster import leave_out, placement
from tests.daemon import KEY, RunningGateway, gateway_config, run_gateway
from tests.gateway.requests import create_session, get_history, session_body, wait_until_idle
from tests.waiting import wait_until

WriteScenario = Callable[..., str]
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


async def half_close(url: str, method: str, path: str, body: Any = None, version: str = "1.1") -> bytes:
    """Send a request, close the client's side, and return all that the server sends until it closes its side."""
    address = httpx.URL(url)
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/{version}\r\nHost: {address.host}\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(head.encode() + data)
        writer.write_eof()
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


@pytest.fixture
def slow(write_scenario: WriteScenario) -> str:
    """A scenario whose turn takes 0.3 s."""
    return write_scenario([{"text": "begun"}, {"delay": 0.3}, {"text": ", done"}])


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("mode", ["none", "delta", "message"])
async def test_half_closed_client_gets_its_response(portico: RunningGateway, slow: str, mode: str, version: str) -> None:
    body = session_body("script", "go", options={"scenario": slow}, stream=mode)
    if placement() == "away" and version == "1.0":
        leave_out("half-closes a connection of HTTP/1.0, whose client is taken for gone where its request is forwarded")
    answer = await half_close(portico.url, "PUT", "/session", body, version)
    if placement():
        # A node that forwards a request watches its client, as with `on_disconnect: cancel`.
        answer = answer.replace(INTERIM, b"")
    assert answer.startswith(b"HTTP/1.1 201" if mode == "none" else b"HTTP/1.1 200")
    assert (b", done" if mode == "delta" else b"begun, done") in answer
    assert b'"stopReason":"end_turn"' in answer


async def test_half_closed_client_gets_a_task_and_a_short_response(portico: RunningGateway) -> None:
    task = await half_close(portico.url, "POST", "/v1/execute", {"driver": "echo", "task": "hello"})
    assert b'"kind":"session_end"' in task
    assert (await half_close(portico.url, "GET", "/healthz")).startswith(b"HTTP/1.1 200")
    session = (await create_session(portico.client, "echo", "hello"))["sessionId"]
    assert b'"content":"hello"' in await half_close(portico.url, "GET", f"/session/{session}")


async def test_half_closed_client_is_not_a_disconnected_one(portico: RunningGateway, slow: str) -> None:
    """With `on_disconnect: cancel` an interim response finds out which of the two it is."""
    body = session_body("script", "go", options={"scenario": slow}, on_disconnect="cancel")
    answer = await half_close(portico.url, "PUT", "/session", body)
    interim, _, rest = answer.rpartition(INTERIM)
    assert interim.replace(INTERIM, b"") == b""
    assert rest.startswith(b"HTTP/1.1 201")
    assert b"begun, done" in rest


@pytest.mark.parametrize("mode", ["none", "delta"])
async def test_half_closed_client_that_closes_the_connection_is_disconnected(
    tmp_path: Path, write_scenario: WriteScenario, mode: str
) -> None:
    steps = [{"text": "begun"}, {"write_file": {"path": "began", "text": "x"}}, {"hang": True}]
    body = session_body("script", "go", options={"scenario": write_scenario(steps)}, stream=mode)
    async with run_gateway(gateway_config(tmp_path, server={"on_disconnect": "cancel"})) as portico:
        client = asyncio.create_task(half_close(portico.url, "PUT", "/session", body))
        await wait_until((tmp_path / "scenes" / "began").exists)
        client.cancel()
        await asyncio.wait([client])
        [session] = (await portico.client.get("/sessions")).json()["sessions"]
        assert (await wait_until_idle(portico.client, session))["state"] == "idle"
        assert (await get_history(portico.client, session))[-1]["content"] == "begun"
