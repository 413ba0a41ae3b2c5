"""A message that is steered into a run of the real claude: it follows a tool result, or begins another turn of the run."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.real.aap_client import AapSession, create_session, read_until_event, user
from tests.real.conftest import Home
from tests.real.models import Model
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


async def test_a_cancel_ends_a_run_and_what_was_steered_into_it(portico: RunningGateway) -> None:
    """Without a later tool call the CLI begins another turn of the same run."""
    aap = await create_session(portico.client, "[[plain]] before")
    async with aap.open_stream("[[midtext]]") as frames:
        await read_until_event(frames, "text_delta")
        steered = steer(aap, "[[echo:steered]]")
        await _wait_for_client_message(aap)
        assert (await portico.client.post(f"/session/{aap.id}/cancel")).json()["cancelled"]
        rest = [frame async for frame in frames]
    assert [name for name, _ in rest].count("turn_stop") == 1
    assert (await steered).json()["stopReason"] == "end_turn"
    text = "".join(data["delta"] for name, data in rest if name == "text_delta")
    assert text.endswith("steered") is False
    assert await aap.send_turn("[[echo:next]]") == "next"
    assert (await aap.history())[-1]["content"] == "next"


async def _wait_for_client_message(aap: AapSession) -> None:
    """Wait until the message is in the event log."""
    async with aap.client.stream("GET", f"/session/{aap.id}/events") as answer:
        seen = ""
        async for chunk in answer.aiter_text():
            seen += chunk
            if seen.count("event: client_message") == 2:
                return
