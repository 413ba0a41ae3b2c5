"""The real codex at work: cancelled with the processes of its tools, and told something in the middle."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.daemon import Running
from tests.model_server.openai import OpenAIServer
from tests.real.codex.conftest import Home
from tests.real.codex.talk import Talk, begin, user
from tests.real.processes import cli_of, gone, of_home, until


def post(talk: Talk, text: str, **fields: Any) -> asyncio.Task[Any]:
    body = {"messages": [user(text)], **fields}
    return asyncio.create_task(talk.client.post(f"/session/{talk.id}", json=body))


def sleeping(home: Home) -> list[int]:
    return [process.pid for process in of_home(home.path, command="time.sleep(97)")]


async def test_a_shell_command_ends_with_its_run(portico: Running, home: Home) -> None:
    talk = await begin(portico.client, "[[plain]]", own={"shell": True})
    turn = post(talk, "[[longshell]]", stream="delta")
    await until(lambda: sleeping(home), "a shell command at work")
    sleeps = sleeping(home)
    began = time.monotonic()
    answer = await portico.client.post(f"/session/{talk.id}/cancel")
    took = time.monotonic() - began
    assert answer.json() == {"sessionId": talk.id, "cancelled": True, "state": "idle"}
    text = (await turn).text
    assert text.count("event: turn_stop") == 1
    for pid in sleeps:
        await gone(pid)
    assert took < 5, f"{took:.2f} s; 1 s on a machine that has nothing else to do"
    assert await talk.send_turn("[[echo:again]]") == "again"


async def test_it_is_told_something_while_it_works(portico: Running, home: Home, model: OpenAIServer) -> None:
    talk = await begin(portico.client, "[[plain]]")
    cli = cli_of(home.path)
    async with talk.saying("[[midtext]]") as frames:
        async for name, _ in frames:
            if name == "text_delta":
                break
        steered = post(talk, "[[echo:steered]]", when_busy="steer")
        rest = [frame async for frame in frames]
    assert [name for name, _ in rest].count("turn_stop") == 1
    assert (await steered).json()["stopReason"] == "end_turn", (await steered).text
    contents = [message["content"] for message in await talk.history()]
    assert contents[-2:] == ["[[echo:steered]]", "steered"]
    assert await talk.send_turn("[[echo:next]]") == "next"
    assert cli_of(home.path) == cli
