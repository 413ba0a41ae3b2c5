"""The requirements of the official test kit of the protocol, on `echo` and `script`: over standard input and output, WebSocket
and HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.gateway.protocols.acp.core_profile import ALL_REQUIREMENTS
from tests.support.acp_client import Client, config, on_http, on_stdio, on_websocket
from tests.support.daemon import KEY, run_gateway

AGENTS = (pytest.param("echo", marks=pytest.mark.long), "script")


@pytest.mark.parametrize("agent", AGENTS)
async def test_requirements_over_standard_input_and_output(tmp_path: Path, agent: str) -> None:
    async with on_stdio(tmp_path, agent) as (client, process):
        await client.initialize()
        for check in ALL_REQUIREMENTS.values():
            await check(client)
        assert process.stdin is not None
        # The process ends at the end of its input.
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 60) == 0


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("on", [on_websocket, on_http])
async def test_requirements_over_websocket_and_http(
    tmp_path: Path, agent: str, on: Callable[..., AbstractAsyncContextManager[Client]]
) -> None:
    async with run_gateway(config(tmp_path)) as running, on(running.url, agent, KEY) as client:
        await client.initialize()
        for check in ALL_REQUIREMENTS.values():
            await check(client)


async def test_invalid_messages_are_answered_with_errors(tmp_path: Path) -> None:
    async with on_stdio(tmp_path, "echo") as (client, process):
        assert process.stdin is not None
        for line, code in (
            (b"{nonsense", -32700),
            (b"[]", -32600),
            (b'"text"', -32600),
            (b'{"id": 1}', -32600),
            (b"\xff\xfe", -32700),
        ):
            process.stdin.write(line + b"\n")
            before = len(client.received)
            await client.until(lambda got, n=before: len(got) > n)
            assert (client.received[-1]["id"], client.received[-1]["error"]["code"]) == (None, code)
        with pytest.raises(Exception, match="initialize"):
            await client.new()
        await client.initialize()
        assert await client.new()


async def test_sessions_can_be_loaded_by_the_next_process(tmp_path: Path) -> None:
    async with on_stdio(tmp_path, "script") as (client, _):
        await client.initialize()
        session = await client.new()
        await client.prompt(session, "one")
    (tmp_path / "work" / "acp.json").unlink()
    (tmp_path / "work").rmdir()
    async with on_stdio(tmp_path, "script") as (client, _):
        await client.initialize()
        assert [s["sessionId"] for s in (await client.request("session/list"))["sessions"]] == [session]
        await client.request("session/load", {"sessionId": session, "cwd": ".", "mcpServers": []})
        assert client.text(session) == "Hello, you said: one"


async def test_stdio_agent_without_a_folder_accepts_any_folder(tmp_path: Path) -> None:
    """An agent without a configured folder, started by its user, works in the folder that the editor requests."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with on_stdio(tmp_path, "echo") as (client, _):
        await client.initialize()
        await client.new(str(elsewhere))
        assert (await client.request("session/list"))["sessions"][0]["cwd"] == str(elsewhere)
        await client.new()
        assert (await client.request("session/list"))["sessions"][0]["cwd"] == str(tmp_path)
