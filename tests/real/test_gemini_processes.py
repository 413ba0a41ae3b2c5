"""The real gemini's processes: resuming in another one, interrupts, the daemon or the CLI killed, and what `/meta` says."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import httpx

from gateway.security.authentication import ADMINISTRATOR
from tests.daemon import Running
from tests.real.gemini import SHELL, Gemini, Talk, begin, gemini, running
from tests.real.processes import gone, until

__all__ = ["gemini", "running"]


async def test_a_session_goes_on_after_the_daemon_was_restarted(gemini: Gemini) -> None:
    daemon = await gemini.daemon()
    async with daemon.client() as client:
        talk = await begin(client, "hello [[plain]]")
        await talk.send_turn("and [[think]]")
    for end in (daemon.kill, daemon.stop):
        await end()
        await daemon.start()
        async with daemon.client() as client:
            talk = Talk(client, talk.id, {})
            received_text = await talk.send_turn("[[recall]]")
            assert "hello [[plain]] | and [[think]]" in received_text
            # Of the replay of the session that is loaded nothing comes.
            assert "Hello from the model" not in received_text
    assert len([r for r in gemini.model.requests if r.scenario == "recall"]) == 2


async def test_a_lost_native_session_is_seeded(gemini: Gemini) -> None:
    daemon = await gemini.daemon()
    async with daemon.client() as client:
        talk = await begin(client, "hello [[plain]]")
    await daemon.stop()
    for path in gemini.base.rglob("session-*.jsonl"):
        path.unlink()
    await daemon.start()
    async with daemon.client() as client:
        received_text = await Talk(client, talk.id, {}).send_turn("[[recall]]")
    assert received_text == "I see 2 user texts. Before this one: hello [[plain]]"


async def test_an_interrupt_in_text(gemini: Gemini, running: Running) -> None:
    talk = await begin(running.client, "[[plain]]")
    session = await running.gateway.sessions.get(ADMINISTRATOR, talk.id)
    turn = asyncio.create_task(talk.post({"role": "user", "content": "[[slowcount]]"}))
    await until(lambda: any(r.scenario == "slowcount" for r in gemini.model.requests), "the model was asked")
    assert session.run is not None
    await session.run.cancel()
    answer = await turn
    assert answer["stopReason"] in ("end_turn", "error")
    assert await talk.send_turn("[[plain]]") == "Hello from the model, this is plain text."


async def test_an_interrupt_in_a_tool_ends_its_process(gemini: Gemini, running: Running) -> None:
    talk = await begin(running.client, "[[plain]]", tools={SHELL: True})
    turn = asyncio.create_task(talk.post({"role": "user", "content": "[[longshell]]"}))
    await until(lambda: bool(gemini.processes("python3")), "the command runs")
    (child,) = gemini.processes("python3")
    began = time.monotonic()
    answer = await running.client.post(f"/session/{talk.id}/cancel")
    took = time.monotonic() - began
    assert answer.json() == {"sessionId": talk.id, "cancelled": True, "state": "idle"}
    await turn
    await gone(child.pid)
    assert took < 5, f"{took:.2f} s; 1 s on a machine that has nothing else to do"
    assert await talk.send_turn("[[plain]]") == "Hello from the model, this is plain text."


async def test_the_cli_killed_in_mid_run(gemini: Gemini, running: Running) -> None:
    talk = await begin(running.client, "hello [[plain]]", tools={SHELL: True})
    turn = asyncio.create_task(talk.post({"role": "user", "content": "[[longshell]]"}))
    await until(lambda: bool(gemini.processes("python3")), "the command runs")
    (child,), (process,) = gemini.processes("python3"), gemini.processes("node")
    process.kill()
    answer = await turn
    assert answer["stopReason"] == "error"
    assert "ended in the middle of the run" in answer["error"]
    await gone(child.pid)
    assert "hello [[plain]]" in await talk.send_turn("[[recall]]")


async def test_a_deleted_session_leaves_nothing(gemini: Gemini, running: Running) -> None:
    talk = await begin(running.client, "hello [[e401]]")
    state = gemini.base / "data" / "state"
    assert [folder.name for folder in state.iterdir()] == [talk.id]
    assert list((state / talk.id / "tmp").glob("gemini-client-error-*"))
    assert (await running.client.delete(f"/session/{talk.id}")).status_code == 204
    assert list(state.iterdir()) == []


async def test_what_is_said_of_it(gemini: Gemini) -> None:
    daemon = await gemini.daemon()
    async with daemon.client() as client:
        agent = await _agent(client)
    assert agent["version"] == "0.61.0"
    assert SHELL in [tool["name"] for tool in agent["tools"]]
    assert agent["capabilities"]["image"] == {"data": {}}


async def _agent(client: httpx.AsyncClient) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(60):
            while not found:
                agents = (await client.get("/meta")).json()["agents"]
                found = [agent for agent in agents if agent["name"] == "gemini" and agent["version"] != "0.0.0"]
    assert found, "gemini is not offered"
    return found[0]
