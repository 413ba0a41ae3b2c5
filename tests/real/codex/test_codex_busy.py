"""Runs of the real codex that are cancelled with the processes of their tools, or steered."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.model_server.openai import OpenAIServer
from tests.real.codex.aap_client import AapSession, create_session, user
from tests.real.codex.conftest import Home
from tests.real.processes import cli_of, running_process, wait_for_exit
from tests.support.daemon import RunningGateway


def post(aap: AapSession, text: str, **fields: Any) -> asyncio.Task[Any]:
    body = {"messages": [user(text)], **fields}
    return asyncio.create_task(aap.client.post(f"/session/{aap.id}", json=body))


async def test_a_cancelled_run_ends_its_shell_command(portico: RunningGateway, home: Home) -> None:
    aap = await create_session(portico.client, "[[plain]]", own={"shell": True})
    turn = post(aap, "[[longshell]]", stream="delta")
    sleeper = await running_process(home.path, "python")
    began = time.monotonic()
    answer = await portico.client.post(f"/session/{aap.id}/cancel")
    took = time.monotonic() - began
    assert answer.json() == {"sessionId": aap.id, "cancelled": True, "state": "idle"}
    text = (await turn).text
    assert text.count("event: turn_stop") == 1
    await wait_for_exit(sleeper.pid)
    assert took < 5, f"{took:.2f} s; 1 s on a machine that has nothing else to do"
    assert await aap.send_turn("[[echo:again]]") == "again"


async def test_a_message_is_steered_into_a_running_turn(portico: RunningGateway, home: Home, model: OpenAIServer) -> None:
    aap = await create_session(portico.client, "[[plain]]")
    cli = cli_of(home.path)
    async with aap.open_stream("[[midtext]]") as frames:
        async for name, _ in frames:
            if name == "text_delta":
                break
        steered = post(aap, "[[echo:steered]]", when_busy="steer")
        rest = [frame async for frame in frames]
    assert [name for name, _ in rest].count("turn_stop") == 1
    assert (await steered).json()["stopReason"] == "end_turn", (await steered).text
    contents = [message["content"] for message in await aap.history()]
    assert contents[-2:] == ["[[echo:steered]]", "steered"]
    assert await aap.send_turn("[[echo:next]]") == "next"
    assert cli_of(home.path) == cli
