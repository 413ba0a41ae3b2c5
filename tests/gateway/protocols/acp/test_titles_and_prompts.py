"""`session/set_title`, `session/status` and `systemPrompt` of `session/new`, which are unstable in the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.protocols.acp.conftest import WriteScenario
from tests.support.acp_client import Client, on_websocket
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


async def test_titles_and_the_status_of_a_session(client: Client, portico: RunningGateway) -> None:
    # They are declared.
    declared = client.described["agentCapabilities"]["sessionCapabilities"]  # type: ignore[attr-defined]
    assert (declared["title"], declared["status"], declared["systemPrompt"]) == ({}, {}, {"mode": {"override": {}}})
    # A title is stored and listed.
    for title in ("Arithmetic", "two\nlines  of   it"):
        session = await client.new()
        stored = " ".join(title.split())
        assert await client.request("session/set_title", {"sessionId": session, "title": title}) == {"title": stored}, title
        listed = (await client.request("session/list", {}))["sessions"][0]
        assert listed["title"] == stored, title
    # The status of a session.
    session = await client.new()
    await client.prompt(session)
    assert await client.request("session/status", {"sessionId": session}) == {"status": "open"}
    await client.request("session/close", {"sessionId": session})
    assert await client.request("session/status", {"sessionId": session}) == {"status": "saved"}
    # An unknown session.
    for method in ("session/set_title", "session/status"):
        with pytest.raises(Exception, match="there is no session"):
            await client.request(method, {"sessionId": "sess_none", "title": "x"})


async def test_system_prompts(client: Client) -> None:
    # A system prompt that cannot be applied creates no session.
    for prompt, problem in (
        ({"mode": "prepend", "content": "x"}, "systemPrompt.mode"),
        ("be terse", "systemPrompt.mode"),
        ({"mode": "append", "content": [{"type": "image", "data": "", "mimeType": "image/png"}]}, "systemPrompt.content"),
        ({"mode": "append"}, "systemPrompt.content"),
    ):
        with pytest.raises(Exception, match=problem):
            await client.new(systemPrompt=prompt)
        assert (await client.request("session/list", {}))["sessions"] == [], (prompt, problem)
    # A system prompt is that of the session.
    for prompt, text in (
        ({"mode": "override", "content": [{"type": "text", "text": "be terse"}]}, "be terse"),
        ({"mode": "append", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}, "one\n\ntwo"),
        ({"mode": "override", "text": "be terse"}, "be terse"),
    ):
        session = await client.new(systemPrompt=prompt)
        await client.prompt(session)
        assert client.text(session) == f"system: {text}", (prompt, text)
    # A session keeps its system prompt.
    session = await client.new()
    given = {"sessionId": session, "cwd": ".", "mcpServers": [], "systemPrompt": {"mode": "append", "content": "x"}}
    with pytest.raises(Exception, match="keeps the one"):
        await client.request("session/load", given)
