"""`session/set_title`, `session/status` and `systemPrompt` of `session/new`, which are unstable in the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.protocols.acp.client import Client
from tests.gateway.protocols.acp.conftest import WriteScenario
from tests.gateway.protocols.acp.transports import on_websocket
from tests.support.daemon import KEY, RunningGateway, gateway_config, run_gateway


@pytest.fixture
async def portico(tmp_path: Path, write_scenario: WriteScenario) -> AsyncIterator[RunningGateway]:
    scenario = write_scenario([{"text": "system: {system}"}])
    agent = {"driver": "script", "cwd": str(tmp_path / "scenes"), "options": {"scenario": scenario}}
    async with run_gateway(gateway_config(tmp_path, agents={"script": agent})) as running:
        yield running


@pytest.fixture
async def client(portico: RunningGateway) -> AsyncIterator[Client]:
    async with on_websocket(portico.url, "script", KEY) as found:
        found.described = await found.initialize()  # type: ignore[attr-defined]
        yield found


async def test_they_are_declared(client: Client) -> None:
    declared = client.described["agentCapabilities"]["sessionCapabilities"]  # type: ignore[attr-defined]
    assert (declared["title"], declared["status"], declared["systemPrompt"]) == ({}, {}, {"mode": {"override": {}}})


@pytest.mark.parametrize("title", ["Arithmetic", "two\nlines  of   it"])
async def test_a_title_is_stored_and_listed(client: Client, title: str) -> None:
    session = await client.new()
    stored = " ".join(title.split())
    assert await client.request("session/set_title", {"sessionId": session, "title": title}) == {"title": stored}
    [listed] = (await client.request("session/list", {}))["sessions"]
    assert listed["title"] == stored


async def test_the_status_of_a_session(portico: RunningGateway, client: Client) -> None:
    session = await client.new()
    await client.prompt(session)
    assert await client.request("session/status", {"sessionId": session}) == {"status": "open"}
    await client.request("session/close", {"sessionId": session})
    assert await client.request("session/status", {"sessionId": session}) == {"status": "saved"}


@pytest.mark.parametrize("method", ["session/set_title", "session/status"])
async def test_an_unknown_session(client: Client, method: str) -> None:
    with pytest.raises(Exception, match="there is no session"):
        await client.request(method, {"sessionId": "sess_none", "title": "x"})


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ({"mode": "override", "content": [{"type": "text", "text": "be terse"}]}, "be terse"),
        ({"mode": "append", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}, "one\n\ntwo"),
        ({"mode": "override", "text": "be terse"}, "be terse"),
    ],
)
async def test_a_system_prompt_is_that_of_the_session(client: Client, prompt: dict[str, Any], text: str) -> None:
    session = await client.new(systemPrompt=prompt)
    await client.prompt(session)
    assert client.text(session) == f"system: {text}"


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ({"mode": "prepend", "content": "x"}, "systemPrompt.mode"),
        ("be terse", "systemPrompt.mode"),
        ({"mode": "append", "content": [{"type": "image", "data": "", "mimeType": "image/png"}]}, "systemPrompt.content"),
        ({"mode": "append"}, "systemPrompt.content"),
    ],
)
async def test_a_system_prompt_that_cannot_be_applied_creates_no_session(client: Client, prompt: Any, problem: str) -> None:
    with pytest.raises(Exception, match=problem):
        await client.new(systemPrompt=prompt)
    assert (await client.request("session/list", {}))["sessions"] == []


async def test_a_session_keeps_its_system_prompt(client: Client) -> None:
    session = await client.new()
    given = {"sessionId": session, "cwd": ".", "mcpServers": [], "systemPrompt": {"mode": "append", "content": "x"}}
    with pytest.raises(Exception, match="keeps the one"):
        await client.request("session/load", given)
