"""A message that is steered into a run of the real claude: it follows a tool result, or begins another turn of the run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.real.aap_client import AapSession, create_session, read_until_event, user
from tests.real.conftest import Home
from tests.real.models import Model
from tests.real.processes import cli_of
from tests.support.daemon import RunningGateway

GRANTS = {"agent": {"tools": [{"name": "Bash", "trust": True}]}}


def steer(aap: AapSession, text: str) -> asyncio.Task[Any]:
    body = {"messages": [user(text)], "when_busy": "steer"}
    return asyncio.create_task(aap.client.post(f"/session/{aap.id}", json=body))


async def test_steering_while_a_tool_runs(portico: RunningGateway, home: Home, model: Model) -> None:
    aap = await create_session(portico.client, "[[plain]] before")
    await aap.send_turn("[[plain]] with tools", **GRANTS)
    async with aap.open_stream("[[run:sleep 2; echo done]]") as frames:
        await read_until_event(frames, "tool_call")
        steered = steer(aap, "[[echo:steered]]")
        rest = [frame async for frame in frames]
    assert [name for name, _ in rest].count("turn_stop") == 1
    assert (await steered).json()["stopReason"] == "end_turn"
    assert "[[echo:steered]]" in str(model.last_request()), "behind the tool's result"
    roles = [message["role"] for message in (await aap.history())[-5:]]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]
    assert await aap.send_turn("[[echo:next]]") == "next"


@pytest.mark.parametrize("cancelled", [False, True])
async def test_steering_without_a_later_tool_call(portico: RunningGateway, home: Home, cancelled: bool) -> None:
    """The CLI begins another turn of the same run; a cancel ends both."""
    aap = await create_session(portico.client, "[[plain]] before")
    cli = cli_of(home.path)
    async with aap.open_stream("[[midtext]]") as frames:
        await read_until_event(frames, "text_delta")
        steered = steer(aap, "[[echo:steered]]")
        await _wait_for_client_message(aap)
        if cancelled:
            assert (await portico.client.post(f"/session/{aap.id}/cancel")).json()["cancelled"]
        rest = [frame async for frame in frames]
    assert [name for name, _ in rest].count("turn_stop") == 1
    assert (await steered).json()["stopReason"] == "end_turn"
    text = "".join(data["delta"] for name, data in rest if name == "text_delta")
    assert text.endswith("steered") is not cancelled
    assert await aap.send_turn("[[echo:next]]") == "next"
    contents = [message["content"] for message in await aap.history()]
    assert contents[-1] == "next"
    if not cancelled:
        assert contents[-5:-2] == [contents[-5], "[[echo:steered]]", "steered"]
        assert contents[-5].startswith("word ")
        assert cli_of(home.path) == cli


async def _wait_for_client_message(aap: AapSession) -> None:
    """Wait until the message is in the event log."""
    async with aap.client.stream("GET", f"/session/{aap.id}/events") as answer:
        seen = ""
        async for chunk in answer.aiter_text():
            seen += chunk
            if seen.count("event: client_message") == 2:
                return
