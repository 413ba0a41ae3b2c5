"""The real claude behind the daemon, for both official clients over both transports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.model_server.scenarios import Text, text_step
from tests.real.acp.clients import editor_on
from tests.real.tool_bench import Bench, bash
from tests.support.daemon import KEY, RunningGateway, run_gateway


@pytest.fixture
async def portico(unstarted_bench: Bench) -> AsyncIterator[RunningGateway]:
    async with run_gateway(unstarted_bench.config()) as running:
        yield running


@pytest.mark.parametrize("transport", ["ws", "http"])
@pytest.mark.parametrize("language", ["python", "typescript"])
async def test_permission_denial_cancel_and_reload(
    unstarted_bench: Bench, portico: RunningGateway, language: str, transport: str
) -> None:
    """A granted, a denied and a cancelled command, a reconnect, and a prompt on the loaded session."""
    made = unstarted_bench.work / "made.txt"
    async with editor_on(language, transport, portico.url, "claude", KEY) as editor:
        session = await editor.new()
        go = unstarted_bench.model_calls(Text("I write. "), bash(f"echo one > {made}"), after="Written.")
        assert await editor.prompt(session, go) == "end_turn"
        assert made.read_text() == "one\n"
        assert editor.received_text() == "I write. Written."
        await editor.choose("reject_once")
        go = unstarted_bench.model_calls(bash(f"rm {made}"), after="I could not.", name="inner")
        assert await editor.prompt(session, go) == "end_turn"
        assert made.exists()
        assert len(editor.permission_requests) == 2

        await editor.choose("nothing")
        go = unstarted_bench.model_calls(bash("sleep 97"), after="never", name="inner")
        prompting = asyncio.create_task(editor.prompt(session, go))
        await editor.until(lambda: len(editor.permission_requests) == 3)
        await editor.notify("session/cancel", {"sessionId": session})
        assert await prompting == "cancelled"
    async with editor_on(language, transport, portico.url, "claude", KEY) as editor:
        assert await editor.list_ids() == [session]
        await editor.load(session)
        assert editor.received_text().startswith("I write. Written.I could not.")
        editor.updates.clear()
        go = unstarted_bench.model_replies(text_step("I remember."), name="inner")
        assert await editor.prompt(session, go) == "end_turn"
        assert editor.received_text() == "I remember."
        # The model receives the earlier conversation.
        assert "I could not." in str(unstarted_bench.model.bodies()[-1]["messages"])
